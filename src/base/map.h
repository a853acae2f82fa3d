/*
 * map.h: read-only maps of whole files.
 *
 * A file that shrinks under its map would end the process with SIGBUS at the first touch of a lost
 * page. The programs (never the library) call map_guard_install once: its handler puts zero pages
 * under a faulting map and marks it broken; whoever reads the map asks map_broken at the end of a
 * step and returns an error. Faults outside our maps go to the handler that was there before.
 */
#ifndef BASE_MAP_H
#define BASE_MAP_H

#include "infer_base.h"

typedef struct file_map {
    const uint8_t *data; // NULL for an empty file
    size_t size;         // bytes
    char *path;          // owned copy, for messages
    bool in_memory;      // read into memory instead of mapped
    int slot;            // in the guard's table; -1: none free
} file_map;

typedef struct map_options {
    bool no_mmap; // read the file into memory
    bool mlock;   // keep it in memory; failing is a warning
} map_options;

/* Opens and maps path. Directories, devices and pipes are errors. o and log may be NULL. */
infer_status map_open(file_map *m, const char *path, const map_options *o, const infer_log *log,
                      infer_error *err);
void map_close(file_map *m); // accepts a zeroed map
bool map_broken(const file_map *m);
/* Tells the system that a range will not be needed soon (its pages leave RSS; reading brings them
 * back). */
void map_release(const file_map *m, const void *from, size_t size);
void map_guard_install(void);

/* Reads a small text file whole; *text is NUL-terminated, freed with mem_free. Over limit bytes is
 * an error. */
infer_status file_read(const char *path, size_t limit, char **text, size_t *size, infer_error *err);
bool file_exists(const char *path);
bool dir_exists(const char *path);

#endif
