/*
 * arena.h: bump allocation with one lifetime. An arena owns chunks; everything in it dies at once.
 * arena_mark and arena_reset give a scope back. Zero-initialised is an empty arena.
 */
#ifndef BASE_ARENA_H
#define BASE_ARENA_H

#include <stddef.h>

typedef struct arena_chunk arena_chunk;
typedef struct arena {
    arena_chunk *chunk; // newest first
    size_t used;        // of the newest chunk
} arena;
typedef struct arena_position {
    arena_chunk *chunk;
    size_t used;
} arena_position;

/* 64-byte aligned; NULL without memory. */
void *arena_alloc(arena *a, size_t n, size_t size);
void *arena_zero(arena *a, size_t n, size_t size);
char *arena_strndup(arena *a, const char *s, size_t n);
char *arena_printf(arena *a, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
arena_position arena_mark(const arena *a);
void arena_reset(arena *a, arena_position p);
void arena_free(arena *a);

#endif
