/*
 * error.h: setting the caller's infer_error.
 *
 * Failing is one line: return error_set(err, INFER_FORMAT, "%s: tensor '%s': …", path, name);
 * Context is added on the way up, once a level, in front: error_prefix(err, "layer %d", l).
 */
#ifndef BASE_ERROR_H
#define BASE_ERROR_H

#include "base/compiler.h"
#include "infer_base.h"

/* Sets code and message (its control characters and invalid bytes become '?'; cut at its size, on a
 * whole UTF-8 character); err may be NULL, and may be among the arguments. Returns code. */
infer_status error_set(infer_error *err, infer_status code, const char *fmt, ...) ATTR_PRINTF(3, 4);

/* Puts "text: " before the message. Returns err's code (INFER_INTERNAL for NULL). */
infer_status error_prefix(infer_error *err, const char *fmt, ...) ATTR_PRINTF(2, 3);

/* Marks an ordinary end. Returns INFER_OK. */
infer_status error_clear(infer_error *err);

/* A list of faults that becomes one line: "a; b; c; and 4 more". Zeroed is empty. */
typedef struct fault_list {
    char text[960];
    int n, n_shown;
} fault_list;
void fault_add(fault_list *f, const char *fmt, ...) ATTR_PRINTF(2, 3);
/* INFER_OK with an empty list, else sets "where: faults" with code. */
infer_status fault_status(const fault_list *f, infer_error *err, infer_status code,
                          const char *where);

/* Writes one formatted line to the callback, if there is one. */
void log_line(const infer_log *log, infer_log_level level, const char *fmt, ...) ATTR_PRINTF(3, 4);

#endif
