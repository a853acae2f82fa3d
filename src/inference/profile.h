/*
 * profile.h: where a step's time goes: a backend table that hands every operation on to another one
 * and times it. An engine without a profile calls its backend directly: measuring costs nothing
 * when it is off.
 */
#ifndef INFERENCE_PROFILE_H
#define INFERENCE_PROFILE_H

#include "compute/backend.h"
#include "models/model.h"

typedef struct profile profile;
struct infer_engine;

/* Counts of zero. `be` and the engine's matrices are borrowed. */
infer_status profile_new(profile **out, const backend *be, const struct infer_engine *e,
                         infer_error *err);
void profile_free(profile *p);
/* Like be->run; in it the operations of profile_backend are timed. They may be called nowhere else.
 */
void profile_run(profile *p, device *dev, worker_fn *fn, void *arg);
const backend *profile_backend(const profile *p);
void profile_reset(profile *p);
/* The rows that took time, the longest first; at most max. Returns their number. */
int profile_rows(const profile *p, infer_profile_row *rows, int max);

#endif
