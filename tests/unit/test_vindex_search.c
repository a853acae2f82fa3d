/* Searching an open vindex: parts, patches, graphs, routers, residency. */
#include <math.h>

#include "base/mem.h"
#include "test.h"
#include "vindex/vindex.h"

enum { D = 32, DENSE = 300, EXPERTS = 4, PER = 50, VOCAB = 20, LAYERS = 2 };

static uint64_t state = 3;
static float draw(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (float)((double)(state >> 40) * 0x1p-23 - 1.0);
}

static char folder[256];
static float gates[(DENSE + EXPERTS * PER) * D], router[EXPERTS * D], x[D];

static void write_file(const char *name, const void *data, size_t size)
{
    char path[400];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    test_write(path, data, size);
}

static int make(void **u)
{
    (void)u;
    static float embed[VOCAB * D];
    char json[2000];
    test_folder(folder, sizeof folder);
    for (int i = 0; i < (DENSE + EXPERTS * PER) * D; i++)
        gates[i] = draw();
    for (int i = 0; i < VOCAB * D; i++)
        embed[i] = draw();
    for (int i = 0; i < EXPERTS * D; i++)
        router[i] = draw();
    for (int i = 0; i < D; i++)
        x[i] = draw();
    snprintf(json, sizeof json,
             "{\"version\":2,\"model\":\"m\",\"family\":\"llama\",\"num_layers\":2,"
             "\"hidden_size\":%d,\"intermediate_size\":%d,\"vocab_size\":%d,\"down_top_k\":0,"
             "\"embed_scale\":1.0,\"extract_level\":\"browse\",\"dtype\":\"f32\",\"layers\":["
             "{\"layer\":0,\"num_features\":%d,\"offset\":0,\"length\":%d},"
             "{\"layer\":1,\"num_features\":%d,\"offset\":%d,\"length\":%d,\"num_experts\":%d,"
             "\"num_features_per_expert\":%d}]}",
             D, DENSE, VOCAB, DENSE, DENSE * D * 4, EXPERTS * PER, DENSE * D * 4,
             EXPERTS * PER * D * 4, EXPERTS, PER);
    write_file("index.json", json, strlen(json));
    write_file("gate_vectors.bin", gates, sizeof gates);
    write_file("embeddings.bin", embed, sizeof embed);
    write_file("router_weights.bin", router, sizeof router);
    return 0;
}

static int unmake(void **u)
{
    (void)u;
    test_remove_folder(folder);
    return 0;
}

static infer_vindex *open_with(infer_vindex_options o)
{
    infer_vindex *v;
    infer_error err;
    if (infer_vindex_open(&v, folder, &o, &err) != INFER_OK) fail_msg("%s", err.msg);
    return v;
}

static double score_of(int layer, int feature)
{
    const float *g = gates + (size_t)(layer * DENSE + feature) * D;
    double sum = 0;
    for (int i = 0; i < D; i++)
        sum += (double)g[i] * (double)x[i];
    return sum;
}

static void off_is_brute_force(void **u)
{
    (void)u;
    infer_vindex *v = open_with((infer_vindex_options){ .n_threads = 2 });
    infer_hit h[10];
    float scores[DENSE];
    for (int l = 0; l < LAYERS; l++) {
        int n = infer_vindex_n_features(v, l);
        assert_int_equal(infer_vindex_knn(v, NULL, l, x, h, 10, NULL), 10);
        for (int i = 0; i < 10; i++) {
            int better = 0;
            for (int f = 0; f < n; f++)
                better += fabs(score_of(l, f)) > fabs(score_of(l, h[i].feature)) + 1e-6;
            assert_in_range(better, 0, i);
            assert_true(fabs((double)h[i].score - score_of(l, h[i].feature)) < 1e-5);
            assert_int_equal(h[i].layer, l);
            assert_int_equal(h[i].token, -1);
        }
    }
    assert_int_equal(infer_vindex_scores(v, 0, x, 1, scores, NULL), INFER_OK);
    for (int f = 0; f < DENSE; f++)
        assert_true(fabs((double)scores[f] - score_of(0, f)) < 1e-5);
    infer_error err;
    assert_int_equal(infer_vindex_knn(v, NULL, 2, x, h, 10, &err), -1);
    assert_int_equal(err.code, INFER_ARGUMENT);
    assert_int_equal(infer_vindex_knn_contribution(v, 0, x, h, 10, &err), -1);
    assert_int_equal(err.code, INFER_UNSUPPORTED); // a browse index has no down rows
    float nan[D];
    for (int i = 0; i < D; i++)
        nan[i] = NAN;
    assert_int_equal(infer_vindex_knn(v, NULL, 0, nan, h, 10, NULL), 0);
    infer_vindex_close(v);
}

static void experts(void **u)
{
    (void)u;
    infer_vindex *scan = open_with((infer_vindex_options){ .n_threads = 1 });
    infer_vindex *graph = open_with((infer_vindex_options){ .n_threads = 2, .hnsw = true });
    infer_hit a[2 * PER], b[2 * PER];
    int n_a[2], n_b[2];
    float two[2 * D];
    memcpy(two, x, sizeof x);
    for (int i = 0; i < D; i++)
        two[D + i] = -x[D - 1 - i];
    for (int e = 0; e <= EXPERTS; e++) {
        infer_knn_options o = { .expert = e };
        assert_int_equal(infer_vindex_knn_batch(scan, 1, two, 2, a, n_a, PER, &o, NULL), INFER_OK);
        assert_int_equal(infer_vindex_knn_batch(graph, 1, two, 2, b, n_b, PER, &o, NULL), INFER_OK);
        for (int r = 0; r < 2; r++) {
            assert_int_equal(n_a[r], PER);
            assert_int_equal(n_b[r], PER);
            for (int i = 0; i < PER; i++) { // beams as wide as the experts: all is found
                assert_int_equal(a[r * PER + i].feature, b[r * PER + i].feature);
                assert_true(a[r * PER + i].score == b[r * PER + i].score);
                if (e) assert_int_equal(a[r * PER + i].feature / PER, e - 1);
            }
        }
    }
    infer_error err;
    infer_knn_options o = { .expert = EXPERTS + 1 };
    assert_int_equal(infer_vindex_knn_batch(scan, 1, x, 1, a, n_a, 5, &o, &err), INFER_ARGUMENT);
    // more than there are: the stride of the caller's table stays
    o = (infer_knn_options){ .expert = 1 };
    infer_hit wide[2 * (PER + 7)];
    assert_int_equal(infer_vindex_knn_batch(scan, 1, two, 2, wide, n_a, PER + 7, &o, NULL), 0);
    assert_int_equal(n_a[1], PER);
    assert_int_equal(wide[PER + 7].feature / PER, 0);
    infer_vindex_close(scan);
    infer_vindex_close(graph);
}

static void routers(void **u)
{
    (void)u;
    infer_vindex *v = open_with((infer_vindex_options){ 0 });
    infer_token_score e[EXPERTS];
    infer_error err;
    assert_int_equal(infer_vindex_route(v, 0, x, e, 2, &err), -1);
    assert_int_equal(err.code, INFER_UNSUPPORTED);
    assert_int_equal(infer_vindex_route(v, 1, x, e, EXPERTS, &err), EXPERTS);
    double sum = 0, logits[EXPERTS], all = 0;
    for (int i = 0; i < EXPERTS; i++) {
        logits[i] = 0;
        for (int j = 0; j < D; j++)
            logits[i] += (double)router[i * D + j] * (double)x[j];
        all += exp(logits[i]);
    }
    for (int i = 0; i < EXPERTS; i++) {
        sum += (double)e[i].score;
        assert_true(fabs((double)e[i].score - exp(logits[e[i].token]) / all) < 1e-5);
        if (i) assert_true(e[i].score <= e[i - 1].score);
    }
    assert_true(fabs(sum - 1) < 1e-5);
    infer_vindex_close(v);
}

/* A patch: its own gates are found, deleted features are not, the rest is as it was. */
static void patches(void **u)
{
    (void)u;
    for (int hnsw = 0; hnsw < 2; hnsw++) {
        infer_vindex *v = open_with((infer_vindex_options){ .hnsw = hnsw });
        infer_patch *p = infer_patch_new(v, NULL);
        infer_hit base[12], h[12];
        assert_int_equal(infer_vindex_knn(v, NULL, 0, x, base, 12, NULL), 12);
        float loud[D], quiet[D];
        for (int i = 0; i < D; i++) {
            loud[i] = 100 * x[i];
            quiet[i] = 0;
        }
        infer_error err;
        assert_int_equal(infer_patch_delete(p, 0, base[0].feature, "test", &err), INFER_OK);
        infer_feature_edit edit = { .layer = 0, .feature = base[5].feature, .gate = quiet };
        assert_int_equal(infer_patch_update(p, &edit, &err), INFER_OK);
        int spare = 0;
        for (int i = 0; i < 12; i++)
            spare += spare == base[i].feature;
        edit = (infer_feature_edit){ .layer = 0, .feature = spare, .gate = loud };
        assert_int_equal(infer_patch_update(p, &edit, &err), INFER_OK);
        assert_int_equal(infer_vindex_knn(v, p, 0, x, h, 10, &err), 10);
        assert_int_equal(h[0].feature, spare);
        double size = 0;
        for (int i = 0; i < D; i++)
            size += 100 * (double)x[i] * (double)x[i];
        assert_true(fabs((double)h[0].score - size) < 1e-3 * size);
        for (int i = 1, j = 0; i < 10; i++, j++) {
            while (j == 0 || j == 5 || base[j].feature == spare)
                j++;
            assert_int_equal(h[i].feature, base[j].feature);
            assert_true(h[i].score == base[j].score);
        }
        infer_patch_free(p);
        infer_vindex_close(v);
    }
}

static void graphs_are_saved(void **u)
{
    (void)u;
    infer_error err;
    infer_vindex *v = open_with((infer_vindex_options){ .hnsw = true });
    assert_false(infer_vindex_graphs_mapped(v));
    assert_int_equal(infer_vindex_save_graphs(v, &err), INFER_OK);
    infer_vindex_close(v);
    v = open_with((infer_vindex_options){ .hnsw = true });
    assert_true(infer_vindex_graphs_mapped(v));
    assert_true(infer_vindex_describe_index(v).has_hnsw);
    float recall[LAYERS];
    assert_int_equal(infer_vindex_check_graphs(v, VOCAB, recall, &err), INFER_OK);
    assert_true(recall[0] >= 0.9f && recall[1] >= 0.9f);
    infer_vindex_close(v);
    v = open_with((infer_vindex_options){ 0 });
    assert_int_equal(infer_vindex_save_graphs(v, &err), INFER_ARGUMENT);
    infer_vindex_close(v);
}

/* Resident pages of the gates of a layer. */
static int resident(const infer_vindex *v, int layer, int *n_pages)
{
    const tensor *t = &v->layers[layer].gate;
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t begin = ((uintptr_t)t->data + page - 1) & ~(page - 1);
    uintptr_t end = ((uintptr_t)t->data + tensor_bytes(t)) & ~(page - 1);
    *n_pages = (int)((end - begin) / page);
    assert_true(*n_pages > 0);
    // mincore tells of the page cache; what this process has mapped is in its page table
    FILE *f = fopen("/proc/self/pagemap", "rb");
    assert_non_null(f);
    int n = 0;
    for (uintptr_t at = begin; at < end; at += page) {
        uint64_t entry;
        assert_int_equal(fseek(f, (long)(at / page * 8), SEEK_SET), 0);
        assert_int_equal(fread(&entry, 8, 1, f), 1);
        n += (int)(entry >> 63);
    }
    fclose(f);
    return n;
}

static void residency(void **u)
{
    (void)u;
    if (getenv("INFER_SANITIZED")) skip(); // whose mlock does nothing
    infer_error err;
    infer_vindex *v = open_with((infer_vindex_options){ .pin_bytes = 48 << 10 });
    infer_hit h[3];
    int n_pages;
    uint64_t small = EXPERTS * PER * D * 4;
    for (int i = 0; i < 3; i++) // layer 0 is used most: 37.5 KiB, layer 1: 25 KiB
        assert_int_equal(infer_vindex_knn(v, NULL, 0, x, h, 3, NULL), 3);
    assert_int_equal(infer_vindex_knn(v, NULL, 1, x, h, 3, NULL), 3);
    infer_residency r = infer_vindex_residency(v);
    assert_int_equal(r.accesses, 4);
    assert_int_equal(r.n_pinned, 0);
    infer_vindex_release(v);
    assert_int_equal(resident(v, 0, &n_pages), 0);
    infer_status st = infer_vindex_repin(v, &err);
    if (st == INFER_LIMIT) { // a system that lets nothing be locked
        infer_vindex_close(v);
        skip();
    }
    assert_int_equal(st, INFER_OK);
    r = infer_vindex_residency(v);
    assert_int_equal(r.n_pinned, 1);
    assert_true(r.pinned > 0 && r.pinned <= r.budget);
    assert_true(v->layers[0].pinned);
    assert_int_equal(resident(v, 0, &n_pages), n_pages); // locking brought it in
    infer_vindex_release(v);
    assert_int_equal(resident(v, 0, &n_pages), n_pages);
    assert_int_equal(resident(v, 1, &n_pages), 0);
    for (int i = 0; i < 9; i++)
        assert_int_equal(infer_vindex_knn(v, NULL, 1, x, h, 3, NULL), 3);
    assert_int_equal(infer_vindex_repin(v, &err), INFER_OK); // now the other one
    r = infer_vindex_residency(v);
    assert_int_equal(r.evictions, 1);
    assert_int_equal(r.n_pinned, 1);
    assert_true(v->layers[1].pinned && r.pinned <= small);
    assert_int_equal(infer_vindex_pin_layers(v, 0, 1, &err), INFER_LIMIT); // over the budget
    assert_true(infer_vindex_residency(v).pinned <= r.budget);
    assert_int_equal(infer_vindex_pin_layers(v, 1, 1, &err), INFER_OK); // already
    assert_int_equal(infer_vindex_pin_layers(v, 1, 2, &err), INFER_ARGUMENT);
    infer_vindex_release(v);
    assert_int_equal(resident(v, 0, &n_pages), 0);
    infer_vindex_close(v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(off_is_brute_force),
        cmocka_unit_test(experts),
        cmocka_unit_test(routers),
        cmocka_unit_test(patches),
        cmocka_unit_test(residency),
        cmocka_unit_test(graphs_are_saved),
    };
    return cmocka_run_group_tests(tests, make, unmake);
}
