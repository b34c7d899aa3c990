/* The passes over one chunk of products; included by passes.c once for every instruction set, with
 * TARGET (a function attribute) and NAMED(name) (a name with that set's suffix) defined.
 *
 * x is [senses, tokens], each sense's row contiguous: loops run along tokens, so that sums over the
 * senses of a word, whichever they are, need no gather. Threads share senses (or words) out among
 * themselves; what is summed over senses has one row a thread, [threads, tokens]. There may be 100,000
 * of them: added one by one, float32 would lose four digits, so that a few are added in float32, and
 * these sums in float64.
 */

#define INLINE static inline TARGET __attribute__((always_inline))
/* The function `name` on the row of sense m, from name##_row, where `kerbs` and `curved` are constants */
#define ON_ROWS(name, parameters, ...) \
    static TARGET void NAMED(name) parameters { \
        if (!chunk->kerbs) NAMED(name##_row)(0, 0, chunk, m, t, size, __VA_ARGS__); \
        else if (chunk->curved[m]) NAMED(name##_row)(1, 1, chunk, m, t, size, __VA_ARGS__); \
        else NAMED(name##_row)(1, 0, chunk, m, t, size, __VA_ARGS__); \
    }
#define ROW const Chunk *chunk, size_t m, size_t t, size_t size

/* e^x − 1 with a relative error of a few units in the last place, for |x| <= 87, or 1 if `curved` */
INLINE float NAMED(expm1)(int curved, float x) {
    if (curved) return NEAR_EXPM1(x, x * x);
    float sum = x * LOG2_E + NEAREST, k = sum - NEAREST;
    float r = (x - k * LN2_HIGH) - k * LN2_LOW; /* |r| <= ln 2 / 2 */
    float power = power_of_two((int32_t)bits_of(sum));
    return power * REDUCED_EXPM1(r, r * r) + (power - 1.0f);
}

/* 2^x for x <= 126; above it is 2^126 at least, or NaN. Below LOWEST it is 0. NaN stays NaN. */
INLINE float NAMED(exp2)(float x) {
    float sum = x + NEAREST, r = x - (sum - NEAREST);
    int32_t bits = (int32_t)bits_of(sum);
    float power = power_of_two(bits < HIGHEST ? bits : HIGHEST) * REDUCED_EXP2(r, r * r);
    return x < LOWEST ? 0.0f : power;
}

/* log2 x for normal x > 0, by 2 artanh((m − 1)/(m + 1)) of its mantissa m in [sqrt ½, sqrt 2) */
INLINE float NAMED(log2)(float x) {
    uint32_t bits = bits_of(x) - SQRT_HALF_BITS;
    int32_t e = (int32_t)bits >> 23;
    float m = float_of((bits & 0x007fffffu) + SQRT_HALF_BITS);
    float s = (m - 1.0f) / (m + 1.0f), q = s * s;
    float series = s * (2.0f + q * (2.0f / 3 + q * (2.0f / 5 + q * (2.0f / 7 + q * (2.0f / 9)))));
    return (float)e + series * LOG2_E;
}

/* Logits s of one sense and q = 2^{s − level}, which `sum` adds up; of KerBS also E = e^{−θc} − 1 */
INLINE void NAMED(powers_row)(
    int kerbs, int curved, ROW, const float *restrict level, float *restrict sum, float *restrict q,
    float *restrict e, float *restrict s) {
    const float *x = chunk->x + m * chunk->tokens + t, *h_norm = chunk->h_norm + t;
    float inverse = kerbs ? chunk->inverse_norm[m] : 0.0f;
    float minus_theta = kerbs ? chunk->minus_theta[m] : 0.0f;
    float radius = kerbs ? chunk->radius[m] * LOG2_E : 0.0f;
    for (size_t j = 0; j < size; j++) {
        float grown = kerbs ? NAMED(expm1)(curved, minus_theta * (inverse * x[j])) : 0.0f;
        if (kerbs) e[j] = grown;
        s[j] = kerbs ? (radius * grown) * h_norm[j] : LOG2_E * x[j];
        q[j] = NAMED(exp2)(s[j] - level[j]);
        sum[j] += q[j];
    }
}
ON_ROWS(powers, (ROW, const float *level, float *sum, float *q, float *e, float *s), level, sum, q, e, s)

/* Whether one of some sums is outside of bounds, or no number: a term was beyond what exp2 can do */
static TARGET int NAMED(any_outside)(const float *value, float low, float high, size_t size) {
    int any = 0;
    for (size_t j = 0; j < size; j++) any |= !(value[j] <= high) | (value[j] < low);
    return any;
}

/* The level rises to the largest logit of sense m, where that lies above it by SLACK: logits that
 * climb little by little would otherwise have the sum rescaled, and rounded, at every step. */
static TARGET void NAMED(raise)(ROW, float *restrict most, double *restrict sum) {
    float s[BLOCK], q[BLOCK], e[BLOCK], unused[BLOCK] = {0};
    NAMED(powers)(chunk, m, t, size, most, unused, q, e, s);
    for (size_t j = 0; j < size; j++) {
        float level = s[j] > most[j] + SLACK ? s[j] : most[j];
        if (level > most[j]) sum[j] *= (double)NAMED(exp2)(most[j] - level);
        most[j] = level;
    }
}

/* Level and sum of exponentials of the thread's senses. */
static TARGET void NAMED(forward)(const Chunk *chunk, size_t thread, size_t from, size_t to) {
    float q[BLOCK], e[BLOCK], s[BLOCK], part[BLOCK];
    for (size_t t = 0; t < chunk->tokens; t += BLOCK) {
        size_t size = smaller(BLOCK, chunk->tokens - t);
        float *most = chunk->most + thread * chunk->tokens + t;
        double *sum = chunk->sum + thread * chunk->tokens + t;
        for (size_t m = from; m < to; m += ROWS) {
            size_t end = smaller(m + ROWS, to);
            for (int again = 0; again < 2; again++) {
                memset(part, 0, sizeof part);
                for (size_t k = m; k < end; k++) NAMED(powers)(chunk, k, t, size, most, part, q, e, s);
                if (again || !NAMED(any_outside)(part, 0.0f, TOO_LARGE, size)) break;
                for (size_t k = m; k < end; k++) NAMED(raise)(chunk, k, t, size, most, sum);
            }
            for (size_t j = 0; j < size; j++) sum[j] += (double)part[j];
        }
    }
}

/* Exponentials q of the logits s of a word's senses, relative to `most`, and their sum. The senses
 * lie anywhere, so that no processor sees by itself which rows come next. Where the sum is too small,
 * 1 is returned, and all is relative to the word's own largest logits instead, in `level`. */
static TARGET int NAMED(word)(
    const Chunk *chunk, size_t v, size_t t, size_t size, const float *most, float (*q)[BLOCK],
    float (*e)[BLOCK], float *restrict sum, float *restrict level) {
    const int64_t *own = chunk->table + v * chunk->width, *next = own + chunk->width;
    float s[BLOCK];
    if (v + 1 < chunk->size)
        for (int64_t k = 0; k < chunk->count[v + 1]; k++)
            for (size_t j = 0; j < size; j += LANES)
                __builtin_prefetch(chunk->x + (size_t)next[k] * chunk->tokens + t + j);
    for (int small = 0;; small = 1) {
        memset(sum, 0, size * sizeof *sum);
        for (int64_t k = 0; k < chunk->count[v]; k++)
            NAMED(powers)(chunk, (size_t)own[k], t, size, small ? level : most, sum, q[k], e[k], s);
        if (small || !NAMED(any_outside)(sum, TOO_SMALL, INFINITY, size)) return small;
        for (int64_t k = 0; k < chunk->count[v]; k++) {
            NAMED(powers)(chunk, (size_t)own[k], t, size, most, sum, q[k], e[k], s);
            for (size_t j = 0; j < size; j++) level[j] = k == 0 || s[j] > level[j] ? s[j] : level[j];
        }
    }
}

/* As `forward`, over the thread's words, together with the sum of the words' logsumexps; or these
 * alone go into `result`, where it is given, [tokens, words] with rows of `stride`. */
static TARGET void NAMED(forward_words)(const Chunk *chunk, size_t thread, size_t from, size_t to) {
    float q[MOST_SENSES][BLOCK], e[MOST_SENSES][BLOCK], total[LANES][BLOCK];
    float level[BLOCK], part[BLOCK], product[BLOCK];
    for (size_t t = 0; t < chunk->tokens; t += BLOCK) {
        size_t size = smaller(BLOCK, chunk->tokens - t);
        float *most = chunk->most + thread * chunk->tokens + t;
        double *sum = chunk->sum + thread * chunk->tokens + t;
        double *words = chunk->words + thread * chunk->tokens + t;
        for (size_t v = from; v < to; v += LANES) {
            size_t lanes = smaller(LANES, to - v);
            double apart[BLOCK]; /* of words with a level of their own, how far it is from `most` */
            int32_t exponent[BLOCK];
            for (int again = 0; again < 2; again++) {
                for (size_t j = 0; j < size; j++) {
                    part[j] = 0.0f, product[j] = 1.0f;
                    exponent[j] = 0, apart[j] = 0.0;
                }
                for (size_t i = 0; i < lanes; i++) {
                    float *own = total[i];
                    int small = NAMED(word)(chunk, v + i, t, size, most, q, e, own, level);
                    if (small)
                        for (size_t j = 0; j < size; j++) {
                            part[j] += own[j] * NAMED(exp2)(level[j] - most[j]);
                            apart[j] += (double)level[j] - (double)most[j];
                        }
                    else for (size_t j = 0; j < size; j++) part[j] += own[j];
                    if (chunk->result) {
                        const float *base = small ? level : most;
                        for (size_t j = 0; j < size; j++) own[j] = LN2 * (base[j] + NAMED(log2)(own[j]));
                    } else for (size_t j = 0; j < size; j++) { /* one logarithm for all words */
                        exponent[j] += (int32_t)(bits_of(own[j]) >> 23) - 127;
                        product[j] *= float_of((bits_of(own[j]) & 0x007fffffu) | 0x3f800000u);
                    }
                }
                if (again || !NAMED(any_outside)(part, 0.0f, TOO_LARGE, size)) break;
                for (size_t k = v * chunk->width; k < (v + lanes) * chunk->width; k++)
                    NAMED(raise)(chunk, (size_t)chunk->table[k], t, size, most, sum);
            }
            for (size_t j = 0; j < size; j++) {
                sum[j] += (double)part[j];
                words[j] += (double)lanes * (double)most[j] + apart[j] + (double)exponent[j]
                            + (double)NAMED(log2)(product[j]);
            }
            if (chunk->result)
                for (size_t j = 0; j < size; j++) /* words of a token lie side by side */
                    for (size_t i = 0; i < lanes; i++)
                        chunk->result[(t + j) * chunk->stride + v + i] = total[i][j];
        }
    }
}

/* From q and `factor`, whose product is G, the gradient of one sense's logits, to P = G ds/dx (in
 * place of x) and the sums that the gradients along h, along w and by θ want. */
INLINE void NAMED(carry_back_row)(
    int kerbs, int curved, ROW, const float *q, const float *factor, const float *e,
    float *restrict along_h) {
    float *restrict x = chunk->x + m * chunk->tokens + t;
    const float *h_norm = chunk->h_norm + t;
    if (!kerbs) {
        for (size_t j = 0; j < size; j++) x[j] = q[j] * factor[j];
        return;
    }
    float inverse = chunk->inverse_norm[m], minus_theta = chunk->minus_theta[m];
    float radius = chunk->radius[m], gain = chunk->gain[m], weighted = 0.0f, bent = 0.0f;
#pragma omp simd reduction(+ : weighted, bent)
    for (size_t j = 0; j < size; j++) {
        float g = q[j] * factor[j], ge = g * e[j];
        if (curved) {
            float c = inverse * x[j], z = minus_theta * c;
            bent += (h_norm[j] * g) * (c * c * BENT(z, z * z));
        }
        along_h[j] += radius * ge;
        weighted += h_norm[j] * ge;
        x[j] = gain * (g + ge);
    }
    chunk->weighted[m] += weighted;
    if (curved) chunk->bent[m] += bent;
}
ON_ROWS(carry_back, (ROW, const float *q, const float *factor, const float *e, float *along_h), q, factor,
        e, along_h)

/* G = weight 2^{s − peak}; with label smoothing, word by word, this − uniform P(m | its word). */
static TARGET void NAMED(backward)(const Chunk *chunk, size_t thread, size_t from, size_t to) {
    float q[MOST_SENSES][BLOCK], e[MOST_SENSES][BLOCK], s[BLOCK], level[BLOCK], total[BLOCK] = {0};
    float part[BLOCK] = {0};
    for (size_t t = 0; t < chunk->tokens; t += BLOCK) {
        size_t size = smaller(BLOCK, chunk->tokens - t);
        double *along_h = chunk->along_h + thread * chunk->tokens + t;
        const float *peak = chunk->peak + t, *weight = chunk->weight + t, *uniform = chunk->uniform;
        for (size_t v = from; v < to; v++) {
            if (!uniform) {
                NAMED(powers)(chunk, v, t, size, peak, total, q[0], e[0], s);
                NAMED(carry_back)(chunk, v, t, size, q[0], weight, e[0], part);
            } else {
                int small = NAMED(word)(chunk, v, t, size, peak, q, e, total, level);
                for (size_t j = 0; j < size; j++)
                    total[j] = (small ? NAMED(exp2)(level[j] - peak[j]) : 1.0f) * weight[j]
                               - uniform[t + j] / total[j];
                for (int64_t k = 0; k < chunk->count[v]; k++)
                    NAMED(carry_back)(chunk, (size_t)chunk->table[v * chunk->width + (size_t)k], t, size,
                                      q[k], total, e[k], part);
            }
            if ((v + 1 - from) % SPAN == 0 || v + 1 == to)
                for (size_t j = 0; j < size; j++) along_h[j] += (double)part[j], part[j] = 0.0f;
        }
    }
}

static const Pass NAMED(passes)[] = {NAMED(forward), NAMED(forward_words), NAMED(backward)};

#undef INLINE
#undef ROW
#undef ON_ROWS
#undef TARGET
#undef NAMED
