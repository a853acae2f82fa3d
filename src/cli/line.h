/*
 * line.h: a line typed at a terminal, with editing and a history kept in a file.
 */
#ifndef CLI_LINE_H
#define CLI_LINE_H

#include <stddef.h>

typedef struct line_editor line_editor;

/* For standard input and output, both terminals. history: the file's path, its folder is made where
 * it is missing; NULL: none is kept. words: what the Tab key completes at a line's start
 * (NULL-terminated, borrowed). NULL without memory. */
line_editor *line_new(const char *history, const char *const *words);
void line_free(line_editor *l);

typedef enum line_end {
    LINE_TEXT,
    LINE_INTERRUPTED,       // Ctrl-C; what was typed is dropped
    LINE_INTERRUPTED_EMPTY, // Ctrl-C where nothing was typed
    LINE_CLOSED,            // Ctrl-D on an empty line, or the terminal is gone
    LINE_NO_MEMORY,
} line_end;

/* *text is UTF-8 without the newline, the caller's (mem_free), NULL for all but LINE_TEXT. The
 * terminal is as before afterwards, also where a signal ends the program meanwhile. */
line_end line_read(line_editor *l, const char *prompt, char **text);
/* What comes back with the arrow keys. */
void line_remember(line_editor *l, const char *text);

#endif
