/*
 * arena.c: chunks in a doubly linked list, bump allocation in the newest.
 *
 * Invariants
 * 1. a->chunk is the chunk in use; prev leads to the full ones, next to spare ones.
 * 2. arena_reset gives chunks back to the spares and not to the system, so that a loop which
 *    allocates the same each time stops allocating after its first round.
 * 3. The position {NULL, 0} (an empty arena's mark) is the start of the oldest chunk.
 */
#include "base/arena.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"

enum { ALIGN = 64, FIRST_CHUNK = 16 << 10, LARGEST_CHUNK = 1 << 20 };

struct arena_chunk {
    arena_chunk *prev, *next;
    size_t size; // of data
    char *data;  // 64-byte aligned, in this same block
};

static void free_from(arena_chunk *c)
{
    while (c) {
        arena_chunk *next = c->next;
        mem_free(c);
        c = next;
    }
}

/* Makes a chunk of at least size bytes the newest: the next spare where it is large enough. */
static int add_chunk(arena *a, size_t size)
{
    arena_chunk *last = a->chunk, *spare = last ? last->next : NULL;
    if (!spare || spare->size < size) {
        // Chunks double up to a limit: small arenas stay small, large ones need few blocks.
        size_t grown = last ? last->size * 2 : FIRST_CHUNK;
        if (grown > LARGEST_CHUNK) grown = LARGEST_CHUNK;
        if (grown < size) grown = size;
        if (grown > SIZE_MAX - sizeof *spare - ALIGN) return 0;
        arena_chunk *c = mem_alloc(sizeof *c + ALIGN + grown, 1);
        if (!c) return 0;
        c->size = grown;
        c->data = (char *)(((uintptr_t)(c + 1) + ALIGN - 1) & ~(uintptr_t)(ALIGN - 1));
        c->prev = last;
        c->next = NULL;
        free_from(spare);
        if (last) last->next = c;
        spare = c;
    }
    a->chunk = spare;
    a->used = 0;
    return 1;
}

void *arena_alloc(arena *a, size_t n, size_t size)
{
    size_t bytes;
    if (!mem_mul(n, size, &bytes) || bytes > SIZE_MAX - ALIGN) return NULL;
    bytes = (bytes + ALIGN - 1) & ~(size_t)(ALIGN - 1);
    if (bytes == 0) bytes = ALIGN;
    if (!a->chunk || bytes > a->chunk->size - a->used) {
        if (!add_chunk(a, bytes)) return NULL;
    }
    void *p = a->chunk->data + a->used;
    a->used += bytes;
    return p;
}

void *arena_zero(arena *a, size_t n, size_t size)
{
    void *p = arena_alloc(a, n, size);
    if (p) memset(p, 0, n * size);
    return p;
}

char *arena_strndup(arena *a, const char *s, size_t n)
{
    n = strnlen(s, n);
    if (n == SIZE_MAX) return NULL;
    char *copy = arena_alloc(a, n + 1, 1);
    if (!copy) return NULL;
    memcpy(copy, s, n);
    copy[n] = 0;
    return copy;
}

char *arena_printf(arena *a, const char *fmt, ...)
{
    va_list args, again;
    va_start(args, fmt);
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, fmt, args);
    char *text = n < 0 ? NULL : arena_alloc(a, (size_t)n + 1, 1);
    if (text) vsnprintf(text, (size_t)n + 1, fmt, again);
    va_end(again);
    va_end(args);
    return text;
}

arena_position arena_mark(const arena *a)
{
    return (arena_position){ .chunk = a->chunk, .used = a->used };
}

void arena_reset(arena *a, arena_position p)
{
    if (!p.chunk) {
        p.chunk = a->chunk;
        while (p.chunk && p.chunk->prev)
            p.chunk = p.chunk->prev;
    }
    a->chunk = p.chunk;
    a->used = p.used;
}

void arena_free(arena *a)
{
    if (a->chunk) {
        arena_chunk *first = a->chunk;
        while (first->prev)
            first = first->prev;
        free_from(first);
    }
    *a = (arena){ 0 };
}
