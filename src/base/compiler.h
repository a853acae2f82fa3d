/* compiler.h: the GNU extensions that the code uses, in one place. */
#ifndef BASE_COMPILER_H
#define BASE_COMPILER_H

#define ATTR_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#define ATTR_ALIGNED(n) __attribute__((aligned(n)))
#define PREFETCH(p) __builtin_prefetch(p)
#define PREFETCH_FAR(p) __builtin_prefetch(p, 0, 2) // into the second-level cache
#define FORCE_INLINE static inline __attribute__((always_inline))
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif
#define COUNT_OF(a) ((int)(sizeof(a) / sizeof((a)[0])))

/* The compiler forgets what it knows of v, a number or pointer: what is computed or loaded by it
 * afterwards is not taken from before, nor moved to before. */
#define FORGET(v) __asm__("" : "+r"(v))

#endif
