/*
 * head.h: logits: of the whole vocabulary, or, where a row wants only the largest, through the
 * search of compute/coarse.h, which gives the same ids and the same bits.
 *
 * The coarse copy of the head costs time and memory, so it is earned: after HEAD_WAIT steps that
 * could have used it, each step packs a slice and searches what is packed, multiplying the rest.
 * Pages of the file that are packed are given back. Where too many rows survive the bounds the copy
 * is dropped, tried once more later, and then given up.
 */
#ifndef INFERENCE_HEAD_H
#define INFERENCE_HEAD_H

#include "compute/backend.h"
#include "infer.h"

struct infer_engine;

#define TABLE_ROWS 64 // of a table that is the head, and in memory elsewhere: most that stay mapped

typedef struct head_search {
    bool possible;     // this head on this backend
    bool packing;      // a copy is begun or complete
    int wait;          // steps until it is begun
    bool disappointed; // a copy was dropped
    int slice;         // panels that a thread packs in a step
    double survivors;  // share of the rows, lately
    int n_measured;    // steps since it was begun
    coarse c;
    double *mean;      // [d_model] of what the head reads, while waiting
    uint64_t *touched; // bit i: WINDOW bytes i of the head's file may be in memory
    size_t n_touched, most_touched;
    top_args args;
    act x; // what args point to
    top_row rows[COARSE_ROWS];
    int32_t *also;            // [MOST_ALSO]
    int n_found[COARSE_ROWS]; // after a step
    int n_embedded;           // rows of the table that were read since its pages were given back
    uint64_t unread;          // bytes of the head that it did not read
} head_search;

/* Buffers of a search, where one is possible; from the engine's workspace. */
infer_status head_open(struct infer_engine *e, infer_error *err);
void head_close(struct infer_engine *e);
/* Whether this step searches: every row that wants logits wants only the largest, and few do. */
void head_plan(struct infer_engine *e, const infer_row *rows);
/* e->ws.out, prepared, to logits or to the search's results; in every thread. */
void head_run(const worker *w, struct infer_engine *e, const act *out);
/* After the step: results in one piece, and what was learnt of the head. */
void head_settle(struct infer_engine *e);
/* No search from now on; between steps. */
void head_give_up(struct infer_engine *e);
/* Whether the head, or some of it, is in memory outside the file too: then few pages of it are to
 * stay mapped for embeddings. */
bool head_is_copied(const struct infer_engine *e);
/* The file's pages of the embedding table may go, if that is the head; while nobody reads it. */
void head_release_table(struct infer_engine *e);
/* Bytes of the copy. */
uint64_t head_bytes(const struct infer_engine *e);

#endif
