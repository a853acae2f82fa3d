/*
 * infer_base.h: what every part of libinfer shares: status codes, the error a caller owns, logging.
 *
 * Nothing here is global. The library never prints, exits, reads the environment or installs signal
 * handlers: it reports through infer_error and the infer_log callback of the options.
 */
#ifndef INFER_BASE_H
#define INFER_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define INFER_API __attribute__((visibility("default")))
#else
#define INFER_API
#endif

/* The one list of status codes: X(NAME, text). It makes the enum and infer_status_str. */
#define INFER_STATUS_LIST(X)                                                                       \
    X(OK, "success")                                                                               \
    X(NOMEM, "out of memory")                                                                      \
    X(ARGUMENT, "invalid argument")                                                                \
    X(IO, "input or output failed")                                                                \
    X(NOT_FOUND, "not found")                                                                      \
    X(FORMAT, "malformed file")                                                                    \
    X(UNSUPPORTED, "not supported")                                                                \
    X(LIMIT, "limit reached")                                                                      \
    X(CANCELLED, "cancelled")                                                                      \
    X(DEVICE, "device error")                                                                      \
    X(INTERNAL, "internal error")

typedef enum infer_status {
#define X(name, text) INFER_##name,
    INFER_STATUS_LIST(X)
#undef X
    INFER_STATUS_COUNT
} infer_status;

/* The short text of a status, "success" for INFER_OK; never NULL. */
INFER_API const char *infer_status_str(infer_status status);

/*
 * Filled by every call that can fail and takes one; NULL may be passed instead. After an ordinary
 * call code is INFER_OK and msg empty. msg is one line that names the thing, what was expected and
 * what was found: lower case, no final stop.
 */
typedef struct infer_error {
    infer_status code;
    char msg[1024];
} infer_error;

typedef enum infer_log_level { INFER_LOG_INFO, INFER_LOG_WARN } infer_log_level;

/* Receives one line without a newline. May be called from any thread of the library. */
typedef void infer_log_fn(infer_log_level level, const char *line, void *user);

typedef struct infer_log {
    infer_log_fn *fn; // NULL: silent
    void *user;
} infer_log;

/* The library's version, "major.minor.patch". */
INFER_API const char *infer_version(void);

#ifdef __cplusplus
}
#endif
#endif
