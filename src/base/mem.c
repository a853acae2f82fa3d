/*
 * mem.c: the malloc family behind a counter. The counter is also what makes the n-th allocation
 * fail in tests; it is relaxed: ordinals matter only where one thread allocates.
 */
#include "base/mem.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/error.h"

#ifndef MAP_ANONYMOUS
#define MAP_ANONYMOUS MAP_ANON
#endif
#ifndef MAP_NORESERVE
#define MAP_NORESERVE 0
#endif

static _Atomic uint64_t n_allocations, fail_at;

uint64_t mem_count(void) { return atomic_load_explicit(&n_allocations, memory_order_relaxed); }

void mem_fail_at(uint64_t ordinal)
{
    atomic_store_explicit(&fail_at, ordinal, memory_order_relaxed);
}

/* Counts an allocation; false where it is the one that shall fail. */
static bool may_allocate(void)
{
    uint64_t ordinal = 1 + atomic_fetch_add_explicit(&n_allocations, 1, memory_order_relaxed);
    return ordinal != atomic_load_explicit(&fail_at, memory_order_relaxed);
}

/* The bytes to ask for: never 0, so that NULL always means failure; and no more than any object may
 * have, which allocators under test abort on. */
static bool total(size_t n, size_t size, size_t *bytes)
{
    if (!mem_mul(n, size, bytes) || *bytes > PTRDIFF_MAX) return false;
    if (*bytes == 0) *bytes = 1;
    return true;
}

void *mem_alloc(size_t n, size_t size)
{
    size_t bytes;
    if (!may_allocate() || !total(n, size, &bytes)) return NULL;
    return malloc(bytes);
}

void *mem_zero(size_t n, size_t size)
{
    size_t bytes;
    if (!may_allocate() || !total(n, size, &bytes)) return NULL;
    return calloc(1, bytes);
}

void *mem_resize(void *p, size_t n, size_t size)
{
    size_t bytes;
    if (!may_allocate() || !total(n, size, &bytes)) return NULL;
    return realloc(p, bytes);
}

char *mem_strdup(const char *s) { return mem_strndup(s, strlen(s)); }

char *mem_strndup(const char *s, size_t n)
{
    n = strnlen(s, n);
    if (n == SIZE_MAX) return NULL;
    char *copy = mem_alloc(n + 1, 1);
    if (!copy) return NULL;
    memcpy(copy, s, n);
    copy[n] = 0;
    return copy;
}

void mem_free(void *p) { free(p); }

void *mem_pages(size_t size)
{
    if (!may_allocate()) return NULL;
    void *p = mmap(NULL, size ? size : 1, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

void mem_free_pages(void *p, size_t size)
{
    if (p) munmap(p, size ? size : 1);
}

void *mem_pages_large(size_t size)
{
    void *p = mem_pages(size);
#ifdef MADV_HUGEPAGE
    if (p) madvise(p, size, MADV_HUGEPAGE);
#endif
    return p;
}

void mem_drop_pages(void *p, size_t size)
{
    if (p && size) madvise(p, size, MADV_DONTNEED);
}

infer_status mem_reserve(void **p, size_t *cap, size_t n, size_t size, infer_error *err)
{
    if (n <= *cap) return error_clear(err);
    size_t want = *cap <= SIZE_MAX / 2 ? *cap * 2 : n;
    if (want < n) want = n;
    if (want < 8) want = 8;
    void *q = mem_resize(*p, want, size);
    if (!q) return error_set(err, INFER_NOMEM, "no memory for %zu items of %zu bytes", want, size);
    *p = q;
    *cap = want;
    return error_clear(err);
}
