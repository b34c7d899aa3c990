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
/* One entry for both kernels, each with code of its own */
#define PASS(name) \
    static TARGET void NAMED(name)(const Chunk *chunk, size_t thread, size_t from, size_t to) { \
        if (chunk->kerbs) NAMED(name##_kind)(chunk, 1, thread, from, to); \
        else NAMED(name##_kind)(chunk, 0, thread, from, to); \
    }

/* e^x − 1 with a relative error of a few units in the last place, for |x| <= 87 */
INLINE float NAMED(expm1)(float x) {
    float k = rintf(x * LOG2_E);
    float r = (x - k * LN2_HIGH) - k * LN2_LOW; /* |r| <= ln 2 / 2 */
    float power = power_of_two(k);
    return power * REDUCED_EXPM1(r) + (power - 1.0f);
}

/* e^x for x <= 87; below the normal range of float32 it is 0. NaN stays NaN. */
INLINE float NAMED(exp)(float x) {
    float bounded = x < EXP_LOWEST ? EXP_LOWEST : x;
    float k = rintf(bounded * LOG2_E);
    float r = (bounded - k * LN2_HIGH) - k * LN2_LOW;
    float power = power_of_two(k); /* 0 at EXP_LOWEST */
    return power * REDUCED_EXPM1(r) + power;
}

/* ln x for normal x > 0, by 2 artanh((m − 1)/(m + 1)) of its mantissa m in [sqrt ½, sqrt 2) */
INLINE float NAMED(log)(float x) {
    uint32_t bits = bits_of(x) - SQRT_HALF_BITS;
    int32_t e = (int32_t)bits >> 23;
    float m = float_of((bits & 0x007fffffu) + SQRT_HALF_BITS);
    float s = (m - 1.0f) / (m + 1.0f), q = s * s;
    float series = s * (2.0f + q * (2.0f / 3 + q * (2.0f / 5 + q * (2.0f / 7 + q * (2.0f / 9)))));
    return (float)e * LN2 + series;
}

/* Logits of one sense for `size` tokens; for the KerBS kernel also E = e^{−θc} − 1 where e is given */
INLINE void NAMED(logits)(
    const Chunk *chunk, int kerbs, size_t m, const float *x, const float *h_norm, size_t size,
    float *restrict s, float *restrict e) {
    if (!kerbs) {
        for (size_t j = 0; j < size; j++) s[j] = x[j];
        return;
    }
    float inverse = chunk->inverse_norm[m], minus_theta = chunk->minus_theta[m];
    float radius = chunk->radius[m];
    for (size_t j = 0; j < size; j++) {
        float grown = NAMED(expm1)(minus_theta * (inverse * x[j]));
        if (e) e[j] = grown;
        s[j] = (radius * grown) * h_norm[j];
    }
}

/* Running level and sum of exponentials take in `rows` rows of logits, with weights or without.
 * The level rises by SLACK at least: logits that climb little by little would otherwise have the sum
 * rescaled, and rounded, at every step. */
INLINE void NAMED(take_in)(
    float (*s)[BLOCK], float (*weight)[BLOCK], size_t rows, size_t size, float *restrict most,
    double *restrict sum) {
    float larger[BLOCK], part[BLOCK];
    int risen = 0;
    for (size_t j = 0; j < size; j++) {
        larger[j] = s[0][j];
        part[j] = 0.0f;
    }
    for (size_t k = 1; k < rows; k++)
        for (size_t j = 0; j < size; j++) larger[j] = s[k][j] > larger[j] ? s[k][j] : larger[j];
    for (size_t j = 0; j < size; j++) risen |= larger[j] > most[j] + SLACK;
    if (risen)
        for (size_t j = 0; j < size; j++) {
            float level = larger[j] > most[j] + SLACK ? larger[j] : most[j];
            sum[j] *= (double)NAMED(exp)(most[j] - level);
            most[j] = level;
        }
    for (size_t k = 0; k < rows; k++)
        for (size_t j = 0; j < size; j++)
            part[j] += (weight ? weight[k][j] : 1.0f) * NAMED(exp)(s[k][j] - most[j]);
    for (size_t j = 0; j < size; j++) sum[j] += (double)part[j];
}

/* Level and sum of exponentials of the thread's senses. */
INLINE void NAMED(forward_kind)(const Chunk *chunk, int kerbs, size_t thread, size_t from, size_t to) {
    float *most = chunk->most + thread * chunk->tokens;
    double *sum = chunk->sum + thread * chunk->tokens;
    float s[ROWS][BLOCK];
    for (size_t t = 0; t < chunk->tokens; t += BLOCK) {
        size_t size = smaller(BLOCK, chunk->tokens - t);
        for (size_t m = from; m < to; m += ROWS) {
            size_t rows = smaller(ROWS, to - m);
            for (size_t k = 0; k < rows; k++)
                NAMED(logits)(chunk, kerbs, m + k, chunk->x + (m + k) * chunk->tokens + t,
                              chunk->h_norm + t, size, s[k], NULL);
            NAMED(take_in)(s, NULL, rows, size, most + t, sum + t);
        }
    }
}

PASS(forward)

/* Logits of a word's senses, their maximum, and the sum of their exponentials relative to it. */
INLINE void NAMED(word)(
    const Chunk *chunk, int kerbs, size_t v, size_t t, size_t size, float (*s)[BLOCK],
    float (*e)[BLOCK], float *restrict most, float *restrict sum) {
    size_t count = (size_t)chunk->count[v];
    const int64_t *own = chunk->table + v * chunk->width;
    for (size_t k = 0; k < count; k++)
        NAMED(logits)(chunk, kerbs, (size_t)own[k], chunk->x + (size_t)own[k] * chunk->tokens + t,
                      chunk->h_norm + t, size, s[k], e ? e[k] : NULL);
    for (size_t j = 0; j < size; j++) {
        most[j] = s[0][j];
        sum[j] = 1.0f;
    }
    if (count == 1) {
        for (size_t j = 0; j < size; j++) s[0][j] = 1.0f;
        return;
    }
    for (size_t k = 1; k < count; k++)
        for (size_t j = 0; j < size; j++) most[j] = s[k][j] > most[j] ? s[k][j] : most[j];
    for (size_t j = 0; j < size; j++) sum[j] = 0.0f;
    for (size_t k = 0; k < count; k++)
        for (size_t j = 0; j < size; j++) sum[j] += s[k][j] = NAMED(exp)(s[k][j] - most[j]);
}

/* As `forward`, over the thread's words, together with the sum of the words' logsumexps; these, too,
 * go into `result` where it is given, [tokens, words] with rows of `stride`. */
INLINE void NAMED(forward_words_kind)(const Chunk *chunk, int kerbs, size_t thread, size_t from, size_t to) {
    float *most = chunk->most + thread * chunk->tokens;
    double *sum = chunk->sum + thread * chunk->tokens;
    double *words = chunk->words + thread * chunk->tokens;
    float s[MOST_SENSES][BLOCK], peak[LANES][BLOCK], total[LANES][BLOCK];
    size_t step = chunk->result ? LANES : ROWS;
    for (size_t t = 0; t < chunk->tokens; t += BLOCK) {
        size_t size = smaller(BLOCK, chunk->tokens - t);
        for (size_t v = from; v < to; v += step) {
            size_t lanes = smaller(step, to - v);
            for (size_t i = 0; i < lanes; i++)
                NAMED(word)(chunk, kerbs, v + i, t, size, s, NULL, peak[i], total[i]);
            NAMED(take_in)(peak, total, lanes, size, most + t, sum + t);
            for (size_t i = 0; i < lanes; i++)
                for (size_t j = 0; j < size; j++)
                    words[t + j] += (double)(peak[i][j] += NAMED(log)(total[i][j]));
            if (chunk->result)
                for (size_t j = 0; j < size; j++) /* words of a token lie side by side */
                    for (size_t i = 0; i < lanes; i++)
                        chunk->result[(t + j) * chunk->stride + v + i] = peak[i][j];
        }
    }
}

PASS(forward_words)

/* From G, the gradient of one sense's logits, to P = G ds/dx (in place of x) and the sums that the
 * gradients along h, along w and by θ want. */
INLINE void NAMED(carry_back)(
    const Chunk *chunk, int kerbs, size_t m, float *restrict x, const float *restrict g,
    const float *restrict e, const float *restrict h_norm, size_t size, float *restrict along_h) {
    if (!kerbs) {
        for (size_t j = 0; j < size; j++) x[j] = g[j];
        return;
    }
    float radius = chunk->radius[m], gain = chunk->gain[m];
    float weighted = 0.0f;
    if (chunk->curved[m]) {
        float inverse = chunk->inverse_norm[m], minus_theta = chunk->minus_theta[m], bent = 0.0f;
#pragma omp simd reduction(+ : bent)
        for (size_t j = 0; j < size; j++) {
            float c = inverse * x[j], z = minus_theta * c;
            bent += (h_norm[j] * g[j]) * (c * c * BENT(z));
        }
        chunk->bent[m] += bent;
    }
#pragma omp simd reduction(+ : weighted)
    for (size_t j = 0; j < size; j++) {
        float ge = g[j] * e[j];
        along_h[j] += radius * ge;
        weighted += h_norm[j] * ge;
        x[j] = gain * (g[j] + ge);
    }
    chunk->weighted[m] += weighted;
}

/* What a few senses gave goes into the sum over all, and begins anew. */
INLINE void NAMED(hand_on)(float *restrict part, size_t size, double *restrict sum) {
    for (size_t j = 0; j < size; j++) {
        sum[j] += (double)part[j];
        part[j] = 0.0f;
    }
}

INLINE void NAMED(backward_kind)(const Chunk *chunk, int kerbs, size_t thread, size_t from, size_t to) {
    double *along_h = chunk->along_h + thread * chunk->tokens;
    float s[BLOCK], e[BLOCK], part[BLOCK] = {0};
    for (size_t t = 0; t < chunk->tokens; t += BLOCK) {
        size_t size = smaller(BLOCK, chunk->tokens - t);
        const float *peak = chunk->peak + t, *weight = chunk->weight + t;
        for (size_t m = from; m < to; m++) {
            float *x = chunk->x + m * chunk->tokens + t;
            NAMED(logits)(chunk, kerbs, m, x, chunk->h_norm + t, size, s, e);
            for (size_t j = 0; j < size; j++) s[j] = NAMED(exp)(s[j] - peak[j]) * weight[j];
            NAMED(carry_back)(chunk, kerbs, m, x, s, e, chunk->h_norm + t, size, part);
            if (kerbs && ((m + 1 - from) % SPAN == 0 || m + 1 == to)) NAMED(hand_on)(part, size, along_h + t);
        }
    }
}

PASS(backward)

/* With label smoothing: G = weight e^{s − peak} − uniform P(m | its word). */
INLINE void NAMED(backward_words_kind)(const Chunk *chunk, int kerbs, size_t thread, size_t from, size_t to) {
    double *along_h = chunk->along_h + thread * chunk->tokens;
    float s[MOST_SENSES][BLOCK], e[MOST_SENSES][BLOCK], most[BLOCK], total[BLOCK], part[BLOCK] = {0};
    for (size_t t = 0; t < chunk->tokens; t += BLOCK) {
        size_t size = smaller(BLOCK, chunk->tokens - t);
        const float *peak = chunk->peak + t, *weight = chunk->weight + t, *uniform = chunk->uniform + t;
        for (size_t v = from; v < to; v++) {
            NAMED(word)(chunk, kerbs, v, t, size, s, e, most, total);
            for (size_t j = 0; j < size; j++)
                total[j] = NAMED(exp)(most[j] - peak[j]) * weight[j] - uniform[j] / total[j];
            for (size_t k = 0; k < (size_t)chunk->count[v]; k++) {
                size_t m = (size_t)chunk->table[v * chunk->width + k];
                for (size_t j = 0; j < size; j++) s[k][j] *= total[j];
                NAMED(carry_back)(chunk, kerbs, m, chunk->x + m * chunk->tokens + t, s[k],
                                  e[k], chunk->h_norm + t, size, part);
            }
            if (kerbs && ((v + 1 - from) % SPAN == 0 || v + 1 == to)) NAMED(hand_on)(part, size, along_h + t);
        }
    }
}

PASS(backward_words)

static const Pass NAMED(passes)[] = {NAMED(forward), NAMED(forward_words), NAMED(backward),
                                     NAMED(backward_words)};

#undef INLINE
#undef PASS
#undef TARGET
#undef NAMED
