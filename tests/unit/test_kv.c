/* test_kv.c: tiles and tables of the KV cache: growth, windows, fork with copy on write, truncation,
 * refusal without change. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "inference/kv.h"

enum { FULL, WINDOWED, SHARED, N_LAYERS };

static layer_plan plans[N_LAYERS] = {
    [FULL] = {.n_kv_heads = 2, .head_dim = 8, .head_dim_v = 8, .kv_source = FULL},
    [WINDOWED] = {.n_kv_heads = 1, .head_dim = 16, .head_dim_v = 20, .window = 70,
                  .kv_source = WINDOWED},
    [SHARED] = {.n_kv_heads = 2, .head_dim = 8, .head_dim_v = 8, .kv_source = FULL},
};
static infer_model model = {.n_layers = N_LAYERS, .layers = plans};

typedef struct fixture {
    device *dev;
    kv_cache c;
} fixture;

static void open_cache(fixture *f, int n_ctx, int n_tokens, int n_sequences)
{
    const backend *be = default_backend();
    device_options o = {.n_threads = 1, .max_cols = 64, .max_head_dim = 20};
    assert_int_equal(be->open(&f->dev, &o, NULL), INFER_OK);
    assert_int_equal(kv_open(&f->c, be, f->dev, &model, KV_F32, KV_F32, n_ctx, n_tokens,
                             n_sequences, 32, NULL),
                     INFER_OK);
}

static void close_cache(fixture *f)
{
    for (int l = 0; l < N_LAYERS; l++) assert_int_equal(f->c.pools[l].n_free, f->c.pools[l].n_tiles);
    const backend *be = f->c.be;
    kv_close(&f->c);
    be->close(f->dev);
}

static void grow(fixture *f, kv_sequence *s, int n)
{
    infer_error err;
    assert_int_equal(kv_prepare(&f->c, s, n, &err), INFER_OK);
    for (int p = s->length; p < s->length + n; p++)
        for (int l = 0; l < 2; l++) {
            assert_non_null(s->layers[l].k[p / KV_TILE]);
            ((float *)s->layers[l].k[p / KV_TILE])[p % KV_TILE] = (float)p;
        }
    kv_commit(&f->c, s, n);
}

static void a_window_costs_its_own_size(void **state)
{
    (void)state;
    fixture f;
    open_cache(&f, 1024, 1024, 1);
    assert_null(f.c.pools[SHARED].mem);
    kv_sequence s;
    assert_int_equal(kv_sequence_new(&f.c, &s, NULL), INFER_OK);
    while (s.length < 1000) {
        grow(&f, &s, 25);
        for (int l = 0; l < 2; l++) { // whatever the next row sees is there
            int first = l == WINDOWED && s.length > 69 ? s.length - 69 : 0;
            for (int p = first; p < s.length; p++)
                assert_true(((float *)s.layers[l].k[p / KV_TILE])[p % KV_TILE] == (float)p);
        }
    }
    assert_int_equal(f.c.pools[FULL].n_tiles - f.c.pools[FULL].n_free, 16);
    assert_true(f.c.pools[WINDOWED].n_tiles - f.c.pools[WINDOWED].n_free <= 3);
    kv_sequence_free(&f.c, &s);
    close_cache(&f);
}

static void a_fork_shares_and_copies_on_write(void **state)
{
    (void)state;
    fixture f;
    open_cache(&f, 256, 512, 2);
    kv_sequence a, b;
    kv_sequence_new(&f.c, &a, NULL);
    kv_sequence_new(&f.c, &b, NULL);
    grow(&f, &a, 100);
    kv_fork(&f.c, &b, &a);
    assert_int_equal(b.length, 100);
    assert_ptr_equal(a.layers[FULL].k[1], b.layers[FULL].k[1]);
    int used = f.c.pools[FULL].n_tiles - f.c.pools[FULL].n_free;
    assert_int_equal(used, 2);
    grow(&f, &b, 1); // writes to the shared tile: a copy
    assert_ptr_equal(a.layers[FULL].k[0], b.layers[FULL].k[0]);
    assert_ptr_not_equal(a.layers[FULL].k[1], b.layers[FULL].k[1]);
    ((float *)b.layers[FULL].k[1])[99 - 64] = -1;
    assert_true(((float *)a.layers[FULL].k[1])[99 - 64] == 99);
    assert_true(((float *)b.layers[FULL].k[1])[98 - 64] == 98);
    grow(&f, &a, 1); // now alone: no copy
    assert_int_equal(f.c.pools[FULL].n_tiles - f.c.pools[FULL].n_free, 3);
    kv_sequence_free(&f.c, &a);
    kv_sequence_free(&f.c, &b);
    close_cache(&f);
}

static void truncation_is_refused_where_a_window_dropped_positions(void **state)
{
    (void)state;
    fixture f;
    open_cache(&f, 512, 512, 1);
    kv_sequence s;
    infer_error err;
    kv_sequence_new(&f.c, &s, NULL);
    for (int i = 0; i < 12; i++) grow(&f, &s, 25); // 300; the window's first tile is position 192
    assert_int_equal(kv_truncate(&f.c, &s, 200, &err), INFER_UNSUPPORTED);
    assert_int_equal(s.length, 300);
    assert_non_null(s.layers[FULL].k[4]);
    assert_int_equal(kv_truncate(&f.c, &s, 270, &err), INFER_OK);
    assert_int_equal(s.length, 270);
    assert_int_equal(kv_truncate(&f.c, &s, 271, &err), INFER_ARGUMENT);
    assert_int_equal(kv_truncate(&f.c, &s, -1, &err), INFER_ARGUMENT);
    assert_int_equal(kv_truncate(&f.c, &s, 0, &err), INFER_OK); // nothing is seen from position 0
    assert_int_equal(f.c.pools[FULL].n_free, f.c.pools[FULL].n_tiles);
    kv_sequence_free(&f.c, &s);
    close_cache(&f);
}

static void a_full_cache_refuses_and_changes_nothing(void **state)
{
    (void)state;
    fixture f;
    open_cache(&f, 1024, 128, 1); // room for 128 positions and one partial tile
    kv_sequence s;
    infer_error err;
    kv_sequence_new(&f.c, &s, NULL);
    grow(&f, &s, 150);
    int free_before = f.c.pools[FULL].n_free;
    assert_int_equal(kv_prepare(&f.c, &s, 64, &err), INFER_LIMIT);
    assert_int_equal(f.c.pools[FULL].n_free, free_before);
    assert_int_equal(s.length, 150);
    assert_int_equal(kv_prepare(&f.c, &s, 30, &err), INFER_OK);
    kv_abandon(&f.c, &s);
    assert_int_equal(f.c.pools[FULL].n_free, free_before);
    kv_sequence_free(&f.c, &s);
    close_cache(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_window_costs_its_own_size),
        cmocka_unit_test(a_fork_shares_and_copies_on_write),
        cmocka_unit_test(truncation_is_refused_where_a_window_dropped_positions),
        cmocka_unit_test(a_full_cache_refuses_and_changes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
