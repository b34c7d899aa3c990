/* What happens to a chunk of products between the matrix products of the likelihood, fused.
 *
 * Called from Python through cpu.py. float32 only.
 */

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define BLOCK 256        /* tokens whose rows of a few senses stay in the L1 cache together */
#define ROWS 8           /* senses between two looks at the running level */
#define SPAN 64          /* senses, or words, whose float32 sums go into a float64 one together */
#define SLACK 8.0f       /* how far a logit may lie above the level before the level rises to it */
#define MOST_SENSES 16   /* of one word */
#define LANES 16         /* words of one token written together: a cache line */

#define LOG2_E 1.44269504088896341f
#define LN2 0.693147180559945309f
#define LN2_HIGH 0.693359375f          /* few bits, so that its multiples are exact */
#define LN2_LOW (-2.12194440054690583e-4f)
#define EXP_LOWEST (-88.0f)            /* rounds to the 127th power of ½, whose bits are those of 0 */
#define SQRT_HALF_BITS 0x3f3504f3u

/* Polynomials through the Chebyshev nodes of an interval.
 * e^r − 1 = r + r² q(r) for |r| <= ln 2 / 2, relative error 2.5e-8 */
#define REDUCED_EXPM1(r) \
    ((r) + (r) * (r) * (0.5f + (r) * (0.1666657631f + (r) * (0.04166655376f \
     + (r) * (0.008363292753f + (r) * 0.001392632562f)))))
/* (z e^z − (e^z − 1))/z² = sum of z^k/(k! (k + 2)) for |z| <= 1, relative error 7e-8 */
#define BENT(z) \
    (0.4999999801f + (z) * (0.3333333313f + (z) * (0.1250006353f + (z) * (0.0333333973f \
     + (z) * (0.006941279401f + (z) * (0.001190157391f + (z) * (0.0001786452495f \
     + (z) * 2.255325601e-5f)))))))

/* Same fields, in the same order, as _Chunk in cpu.py. M: senses, V: words. */
typedef struct {
    const float *inverse_norm; /* [M] 1/|w|, or 0 */
    const float *minus_theta;  /* [M] −θ */
    const float *radius;       /* [M] a(θ)|w| */
    const float *gain;         /* [M] g(θ) */
    const uint8_t *curved;     /* [M] whether `bent` is wanted: |θ| is small */
    float *weighted;           /* [M] adds up sum over tokens of |h| G E */
    float *bent;               /* [M] adds up sum over tokens of |h| G c² r(−θc) */
    float *x;                  /* [M, tokens]: products with h/|h| (KerBS) or h (inner product) */
    const float *h_norm;       /* [tokens] */
    const float *peak;         /* [tokens] level over all senses: G = weight e^{s − peak} − … */
    const float *weight;       /* [tokens] */
    const float *uniform;      /* [tokens] weight of P(m | its word) with label smoothing */
    float *most;               /* [threads, tokens] running level: within SLACK of the maximum */
    double *sum;               /* [threads, tokens] sum of exponentials relative to it */
    double *words;             /* [threads, tokens] sum of the words' logsumexps */
    double *along_h;           /* [threads, tokens] sum of G s/|h| */
    float *result;             /* [tokens, stride], or NULL */
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

/* 2^k for whole k within −126 … 127 */
static inline float power_of_two(float k) {
    return float_of(((uint32_t)(int32_t)k + 127u) << 23);
}

#define TARGET
#define NAMED(name) name##_plain
#include "passes_body.h"

#if defined(__x86_64__)
#define TARGET __attribute__((target("avx2,fma")))
#define NAMED(name) name##_avx2
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

static const Pass *best_passes(void) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return passes_avx2;
#endif
    return passes_plain;
}

/* Run pass number `which` over a chunk; without `fork` on the calling thread alone. */
void kerbs_run(int32_t which, int32_t plain, const Chunk *chunk, Fork fork, Count number, Count team) {
    Job job = {chunk, (plain ? passes_plain : best_passes())[which], number, team};
    if (fork && chunk->threads > 1) fork(share, &job, (unsigned)chunk->threads, 0);
    else {
        job.number = job.team = NULL;
        share(&job);
    }
}
