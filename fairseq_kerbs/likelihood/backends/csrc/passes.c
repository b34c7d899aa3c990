/* What happens to a chunk of products between the matrix products of the likelihood, fused.
 *
 * Called from Python through cpu.py. float32 only.
 */

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define BLOCK 256        /* tokens whose rows of a few senses stay in the L1 cache together */
#define ROWS 8           /* senses, or words, whose float32 sums go into a float64 one together */
#define SPAN 64          /* the same for sums of what may have either sign */
#define SLACK 12.0f      /* how far a logit may lie above the level before the level rises to it */
#define TOO_LARGE 65536.0f /* a sum of ROWS terms above this has one that lies above the level by SLACK */
#define TOO_SMALL 1e-18f /* a word's sum below this may lack terms below 2^LOWEST that count */
#define MOST_SENSES 16   /* of one word */
#define LANES 16         /* words of one token written together: a cache line */

#define LOG2_E 1.44269504088896341f
#define LN2 0.693147180559945309f
#define LN2_HIGH 0.693359375f          /* few bits, so that its multiples are exact */
#define LN2_LOW (-2.12194440054690583e-4f)
#define SQRT_HALF_BITS 0x3f3504f3u
/* x + NEAREST has the whole number nearest to x, plus 127, in its last bits, for |x| < 2^21 */
#define NEAREST 12583039.0f
#define HIGHEST 0x4b4000fd /* the bits of 126 + NEAREST */
#define LOWEST (-90.0f)    /* 2^x is 0 below: products with it would be subnormal, and slow */

/* Polynomials through the Chebyshev nodes of an interval, in pairs of terms: short chains of
 * operations that wait for one another. square = r² or z².
 * e^r − 1 for |r| <= ln 2 / 2, relative error 2.5e-8 */
#define REDUCED_EXPM1(r, square) \
    ((r) + (square) * ((0.5f + 0.1666657631f * (r)) + (square) * ((0.04166655376f + 0.008363292753f * (r)) \
     + (square) * 0.001392632562f)))
/* 2^r for |r| <= ½, relative error 2e-8 */
#define REDUCED_EXP2(r, square) \
    (1.0f + (r) * ((0.6931471825f + 0.2402265072f * (r)) + (square) * ((0.05550327152f \
     + 0.009618056938f * (r)) + (square) * (0.0013400428f + 0.0001546144485f * (r)))))
/* e^z − 1 for |z| <= 1, relative error 7e-8 */
#define NEAR_EXPM1(z, square) \
    ((z) + (square) * ((0.5f + 0.166667372f * (z)) + (square) * ((0.04166673496f + 0.008329831995f * (z)) \
     + (square) * ((0.001388539677f + 0.0002039935789f * (z)) + (square) * 2.535851308e-5f))))
/* (z e^z − (e^z − 1))/z² = sum of z^k/(k! (k + 2)) for |z| <= 1, relative error 7e-8 */
#define BENT(z, square) \
    ((0.4999999801f + 0.3333333313f * (z)) + (square) * ((0.1250006353f + 0.0333333973f * (z)) \
     + (square) * ((0.006941279401f + 0.001190157391f * (z)) \
     + (square) * (0.0001786452495f + 2.255325601e-5f * (z)))))

/* Same fields, in the same order, as _Chunk in cpu.py. M: senses, V: words. Logits are multiplied by
 * log2 e in here, so that their exponentials are powers of two, and so are all levels of them. */
typedef struct {
    const float *inverse_norm; /* [M] 1/|w|, or 0 */
    const float *minus_theta;  /* [M] −θ */
    const float *radius;       /* [M] a(θ)|w| */
    const float *gain;         /* [M] g(θ) */
    const uint8_t *curved;     /* [M] whether `bent` is wanted: |θ| < 1 */
    float *weighted;           /* [M] adds up sum over tokens of |h| G E */
    float *bent;               /* [M] adds up sum over tokens of |h| G c² r(−θc) */
    float *x;                  /* [M, tokens]: products with h/|h| (KerBS) or h (inner product) */
    const float *h_norm;       /* [tokens] */
    const float *peak;         /* [tokens] level over all senses: G = weight 2^{s − peak} − … */
    const float *weight;       /* [tokens] */
    const float *uniform;      /* [tokens] weight of P(m | its word) with label smoothing, or NULL */
    float *most;               /* [threads, tokens] running level: within SLACK of the maximum */
    double *sum;               /* [threads, tokens] sum of exponentials relative to it */
    double *words;             /* [threads, tokens] sum of the words' logsumexps, to base 2 */
    double *along_h;           /* [threads, tokens] sum of G s/|h| */
    float *result;             /* [tokens, stride]: the words' logsumexps, to base e; or NULL */
    const int64_t *table;      /* [V, width] senses of every word */
    const int64_t *count;      /* [V] how many */
    size_t size;               /* senses or words that the threads share */
    size_t tokens, width, stride, threads;
    int32_t kerbs;             /* 1: KerBS kernel, 0: inner product */
} Chunk;

typedef void (*Pass)(const Chunk *, size_t thread, size_t from, size_t to);

static inline size_t smaller(size_t a, size_t b) { return a < b ? a : b; }

static inline float float_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* 2^k from the bits of k + NEAREST, for whole k within −126 … 127 */
static inline float power_of_two(int32_t bits) { return float_of((uint32_t)bits << 23); }

#define TARGET
#define NAMED(name) name##_plain
#include "passes_body.h"

#if defined(__x86_64__)
#define TARGET __attribute__((target("avx2,fma")))
#define NAMED(name) name##_avx2
#include "passes_body.h"

#define TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")))
#define NAMED(name) name##_avx512
#include "passes_body.h"
#endif

/* ------------------------------------------------------------------------------ threads */

/* The entry of the OpenMP runtime that torch itself has loaded, so that both use the same threads. */
typedef void (*Fork)(void (*body)(void *), void *data, unsigned threads, unsigned flags);
typedef int (*Count)(void);

typedef struct {
    const Chunk *chunk;
    Pass pass;
    Count number, team;
} Job;

static void share(void *data) {
    const Job *job = data;
    size_t team = job->team ? (size_t)job->team() : 1, number = job->number ? (size_t)job->number() : 0;
    /* rows of sums belong to chunk->threads threads; the runtime may have given fewer */
    for (size_t i = number; i < job->chunk->threads; i += team) {
        size_t size = job->chunk->size, threads = job->chunk->threads;
        job->pass(job->chunk, i, size * i / threads, size * (i + 1) / threads);
    }
}

/* Passes for this processor: of target 1 … 3 (plain, AVX2, AVX-512), or NULL where it lacks these
 * instructions; of target 0, the best. */
static const Pass *passes_of(int32_t target) {
#if defined(__x86_64__)
    int avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    int avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw")
                 && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    if (avx512 && (target == 0 || target == 3)) return passes_avx512;
    if (avx2 && (target == 0 || target == 2)) return passes_avx2;
#endif
    return target <= 1 ? passes_plain : NULL;
}

int32_t kerbs_has_target(int32_t target) { return passes_of(target) != NULL; }

/* Run pass number `which` over a chunk; without `fork` on the calling thread alone. */
void kerbs_run_pass(
    int32_t which, int32_t target, const Chunk *chunk, Fork fork, Count number, Count team) {
    Job job = {chunk, passes_of(target)[which], number, team};
    if (fork && chunk->threads > 1) fork(share, &job, (unsigned)chunk->threads, 0);
    else {
        job.number = job.team = NULL;
        share(&job);
    }
}
