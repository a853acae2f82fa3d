/*
 * cmd_ask.c: `infer describe`, `walk`, `select`, `relations`, `stats`, `neighbours` and `hnsw`:
 * questions to a vindex. Texts stand in the last columns, so that scripts of any width line up.
 */
#include <limits.h>
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "cli/cli.h"
#include "infer_vindex.h"

typedef struct ask_options {
    const char *band, *layers, *relation, *order;
    cli_list patches;
    float min_score;
    int top, threads, ef, n_check;
    bool json, hnsw, check, experts;
    const char *rank;
} ask_options;

// clang-format off
#define ASK_MACHINE                                                                                \
    { "--threads", "N", OPT_INT, offsetof(ask_options, threads), .min = 1, .max = 256,             \
      .help = "threads (default: physical cores that this process may use)" },                     \
    { "--json", NULL, OPT_FLAG, offsetof(ask_options, json), .help = "one JSON object" },          \
    { 0 }
#define ASK_WHERE(default_band)                                                                    \
    { "--band", "NAME", OPT_CHOICE, offsetof(ask_options, band),                                   \
      .choices = "syntax|knowledge|output|all", .help = "layers by what they mostly do (default: " \
      default_band ")" },                                                                          \
    { "--layers", "A-B", OPT_TEXT, offsetof(ask_options, layers),                                  \
      .help = "these layers, or one of them, instead of a band" },                                 \
    { "--relation", "NAME", OPT_TEXT, offsetof(ask_options, relation),                             \
      .help = "only features with this label" },                                                   \
    { "--patch", "FILE", OPT_LIST, offsetof(ask_options, patches),                                 \
      .help = "lay a patch over the index; may be repeated, later ones win" }
#define ASK_TOP(text)                                                                              \
    { "--top", "N", OPT_INT, offsetof(ask_options, top), .min = 1, .max = 1000000, .help = text }
#define ASK_GRAPHS                                                                                 \
    { "--hnsw", NULL, OPT_FLAG, offsetof(ask_options, hnsw),                                       \
      .help = "search by graphs (see 'infer hnsw') instead of scanning" }
// clang-format on

/* An open index with its patches, and the query that the options make. */
typedef struct asking {
    infer_vindex *v;
    infer_patch *p;
    infer_query q;
} asking;

static void ask_close(asking *a)
{
    infer_patch_free(a->p);
    infer_vindex_close(a->v);
}

static bool read_layers(const char *text, int *first, int *last)
{
    char end;
    if (sscanf(text, "%9d-%9d%c", first, last, &end) == 2) return *first >= 0 && *last >= *first;
    *last = -1;
    return sscanf(text, "%9d%c", first, &end) == 1 && *first >= 0;
}

static int ask_open(asking *a, const cli_command *c, const char *path, const ask_options *o)
{
    infer_error err = { 0 };
    *a = (asking){ 0 };
    a->q = (infer_query){ .struct_size = sizeof a->q,
                          .band = o->band,
                          .relation = o->relation,
                          .min_score = o->min_score,
                          .contrast = o->rank && !strcmp(o->rank, "contrast"),
                          .by_layer = o->order && !strcmp(o->order, "layer") };
    if (o->layers && !read_layers(o->layers, &a->q.first_layer, &a->q.last_layer))
        return cli_usage(c, "--layers: expected A-B, found '%s'", o->layers);
    if (o->layers && !a->q.first_layer && !a->q.last_layer) a->q.last_layer = -1;
    infer_vindex_options vo = { .struct_size = sizeof vo,
                                .hnsw = o->hnsw,
                                .ef_search = o->ef,
                                .n_threads = o->threads,
                                .log = cli_log };
    if (infer_vindex_open(&a->v, path, &vo, &err)) return cli_fail(&err);
    if (o->patches.n && !(a->p = infer_patch_new(a->v, &err))) return cli_fail(&err);
    for (int i = 0; i < o->patches.n; i++)
        if (infer_patch_load(a->p, o->patches.v[i], &err)) return cli_fail(&err);
    a->q.patch = a->p;
    return EXIT_DONE;
}

static json_t *text(const char *s) { return s ? cli_json_text(s, strlen(s)) : json_null(); }

static void put(const char *s, int max)
{
    if (s) cli_put_text(stdout, s, strlen(s), max);
}

/* Relations are short and mostly ASCII: a column of their own where any is known. */
static void put_relation(const char *relation, bool any)
{
    if (any) printf("  %-20.20s", relation ? relation : "-");
}

/* The layers of an edge, "9" or "7-12". */
static const char *layer_text(char out[32], const infer_edge *e)
{
    if (e->first_layer == e->last_layer)
        snprintf(out, 32, "%d", e->first_layer);
    else
        snprintf(out, 32, "%d-%d", e->first_layer, e->last_layer);
    return out;
}

/* What else the feature speaks for: up to `most` further tokens, of them first those that hold the
 * text that was asked for. */
static json_t *also_json(const asking *a, int layer, int feature, int32_t token, int most)
{
    infer_token_score t[64];
    json_t *list = json_array();
    int n = infer_vindex_feature(a->v, a->p, layer, feature, t, 64);
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < n && (int)json_array_size(list) < most; i++) {
            const char *s = infer_vindex_token(a->v, t[i].token);
            bool asked = a->q.entity && strcasestr(s, a->q.entity);
            if (t[i].token != token && asked == !pass) json_array_append_new(list, text(s));
        }
    return list;
}

static void put_also(const asking *a, int layer, int feature, int32_t token, int most)
{
    json_t *list = also_json(a, layer, feature, token, most);
    for (size_t i = 0; i < json_array_size(list); i++) {
        fputs(i ? ", " : "   (", stdout);
        put(json_string_value(json_array_get(list, i)), 20);
    }
    if (json_array_size(list)) putchar(')');
    json_decref(list);
}

static json_t *edge_json(const asking *a, const infer_edge *e)
{
    return json_pack("{s:o, s:o, s:f, s:i, s:i, s:i, s:i, s:i, s:o}", "target", text(e->target),
                     "relation", text(e->relation), "score", (double)e->score, "layer", e->layer,
                     "feature", e->feature, "features", e->n_features, "first_layer",
                     e->first_layer, "last_layer", e->last_layer, "also",
                     also_json(a, e->layer, e->feature, e->token, 5));
}

static json_t *edges_json(const asking *a, const infer_edge *e, int n)
{
    json_t *list = json_array();
    for (int i = 0; i < n; i++)
        json_array_append_new(list, edge_json(a, &e[i]));
    return list;
}

static void print_edges(const asking *a, const infer_edge *e, int n, bool joined)
{
    char layers[32];
    bool any = false;
    for (int i = 0; i < n; i++)
        any |= e[i].relation != NULL;
    printf("%s%8s  %-7s %8s%s%s  %s%s\n", cli_bold(stdout), "score", joined ? "layers" : "layer",
           "feature", joined ? "  count" : "", any ? "  relation            " : "",
           "target   (also)", cli_plain(stdout));
    for (int i = 0; i < n; i++) {
        char place[32];
        snprintf(place, sizeof place, joined ? "%d:%d" : "%.0d%d", joined ? e[i].layer : 0,
                 e[i].feature);
        printf("%8.2f  %-7s %8s", (double)e[i].score, layer_text(layers, &e[i]), place);
        if (joined) printf("  %5d", e[i].n_features);
        put_relation(e[i].relation, any);
        fputs("  ", stdout);
        put(e[i].target, 40);
        put_also(a, e[i].layer, e[i].feature, e[i].token, 4);
        putchar('\n');
    }
}

/* ---- describe -------------------------------------------------------------------------------- */

static const cli_option describe_table[] = {
    ASK_WHERE("all"),
    ASK_TOP("targets (default: 20)"),
    { "--rank", NULL, OPT_CHOICE, offsetof(ask_options, rank), .choices = "contrast|raw",
      .help = "contrast (default): by how far a gate's answer stands out from its answers to "
              "tokens at large, in standard deviations; raw: by the answer itself" },
    { "--min-score", "X", OPT_FLOAT, offsetof(ask_options, min_score), .max = 1e30,
      .help = "leave out features with less (default: 0)" },
    ASK_MACHINE,
};

static int run_describe(int argc, char **argv)
{
    ask_options o = { .top = 20, .band = "all", .rank = "contrast" };
    cli_args args;
    asking a = { 0 };
    infer_error err = { 0 };
    int code;
    if (!cli_parse(&cmd_describe, &o, &args, argc, argv, &code)) return code;
    infer_edge *e = mem_alloc((size_t)o.top, sizeof *e);
    if (!e) return cli_error(EXIT_FAILED, "out of memory");
    if (!(code = ask_open(&a, &cmd_describe, args.v[0], &o))) {
        int n = infer_vindex_describe(a.v, args.v[1], e, o.top, &a.q, &err);
        if (n < 0)
            code = cli_fail(&err);
        else if (o.json)
            code = cli_json_print(json_pack("{s:o, s:s, s:o}", "entity", text(args.v[1]), "rank",
                                            o.rank, "edges", edges_json(&a, e, n)));
        else if (n)
            print_edges(&a, e, n, true);
        else
            cli_warn("'%s': no feature of these layers answers with a readable token", args.v[1]);
    }
    ask_close(&a);
    mem_free(e);
    return cli_flush(code);
}

const cli_command cmd_describe = {
    .name = "describe",
    .args = "VINDEX ENTITY",
    .min_args = 2,
    .max_args = 2,
    .summary = "what a model's features say of an entity",
    .text =
        "The entity's embedding is held against the gates of each layer, as no forward pass does; "
        "of each layer's 20 strongest features that answer, the first token they speak for is "
        "listed, equal ones joined. Scores rank what is connected with the entity; they are no "
        "proof of a fact. Tokens that are no words, and the entity itself, are left out.\n"
        "score is the strongest feature's, LAYER:FEATURE is where it is, count how many features "
        "speak for the target.",
    .options = describe_table,
    .run = run_describe,
};

/* ---- walk ------------------------------------------------------------------------------------ */

static const cli_option walk_table[] = {
    ASK_WHERE("all"),
    ASK_TOP("features, or experts, of each layer (default: 5)"),
    { "--min-score", "X", OPT_FLOAT, offsetof(ask_options, min_score), .max = 1e30,
      .help = "leave out scores of a smaller magnitude (default: 0)" },
    { "--experts", NULL, OPT_FLAG, offsetof(ask_options, experts),
      .help = "the experts that the routers of a mixture choose, instead of features" },
    ASK_GRAPHS,
    ASK_MACHINE,
};

static int print_walk(const asking *a, const char *prompt, const infer_hit *h, int n, bool json)
{
    json_t *list = json_array();
    bool any = false;
    for (int i = 0; i < n; i++)
        any |= h[i].label != NULL;
    if (!json)
        printf("%s%5s  %8s %9s%s  target   (also)%s\n", cli_bold(stdout), "layer", "feature",
               "score", any ? "  relation            " : "", cli_plain(stdout));
    for (int i = 0; i < n; i++) {
        const char *target = h[i].token >= 0 ? infer_vindex_token(a->v, h[i].token) : NULL;
        if (json) {
            json_array_append_new(
                list, json_pack("{s:i, s:i, s:f, s:o, s:o, s:o}", "layer", h[i].layer, "feature",
                                h[i].feature, "score", (double)h[i].score, "target", text(target),
                                "relation", text(h[i].label), "also",
                                also_json(a, h[i].layer, h[i].feature, h[i].token, 5)));
            continue;
        }
        if (i && h[i].layer == h[i - 1].layer)
            printf("%5s", "");
        else
            printf("%5d", h[i].layer);
        printf("  %8d %9.2f", h[i].feature, (double)h[i].score);
        put_relation(h[i].label, any);
        fputs("  ", stdout);
        put(target ? target : "-", 40);
        put_also(a, h[i].layer, h[i].feature, h[i].token, 4);
        putchar('\n');
    }
    if (json) return cli_json_print(json_pack("{s:o, s:o}", "prompt", text(prompt), "hits", list));
    json_decref(list);
    return EXIT_DONE;
}

/* The routers' choices for a prompt's last token. */
static int print_experts(const asking *a, const char *prompt, int top, bool json)
{
    infer_vindex_info info = infer_vindex_describe_index(a->v);
    infer_error err = { 0 };
    float *x = mem_alloc((size_t)info.d_model, sizeof *x);
    infer_token_score *e = mem_alloc((size_t)top, sizeof *e);
    json_t *list = json_array();
    int code = EXIT_DONE;
    if (!x || !e) code = cli_error(EXIT_FAILED, "out of memory");
    if (!code && infer_vindex_embed(a->v, prompt, true, x, &err)) code = cli_fail(&err);
    bool one = a->q.first_layer || a->q.last_layer;
    int first = one ? a->q.first_layer : 0, last = one ? a->q.last_layer : info.n_layers - 1;
    if (last < 0) last = first;
    int routed = 0;
    for (int l = first; !code && l <= last; l++) {
        int n = infer_vindex_route(a->v, l, x, e, top, &err);
        if (n < 0 && err.code == INFER_UNSUPPORTED && !one) continue; // dense layers among others
        if (n < 0) {
            code = cli_fail(&err);
            break;
        }
        routed++;
        if (!json) printf("layer %-3d", l);
        for (int i = 0; i < n; i++) {
            if (json)
                json_array_append_new(list,
                                      json_pack("{s:i, s:i, s:f}", "layer", l, "expert",
                                                (int)e[i].token, "weight", (double)e[i].score));
            else
                printf("  %5d %5.1f%%", (int)e[i].token, 100 * (double)e[i].score);
        }
        if (!json) putchar('\n');
    }
    if (!code && !routed)
        code =
            cli_error(EXIT_FAILED, "%s: no routers: the model is no mixture of experts", info.path);
    if (!code && json)
        code = cli_json_print(json_pack("{s:o, s:O}", "prompt", text(prompt), "experts", list));
    json_decref(list);
    mem_free(x);
    mem_free(e);
    return code;
}

static int run_walk(int argc, char **argv)
{
    ask_options o = { .top = 5, .band = "all" };
    cli_args args;
    asking a = { 0 };
    infer_error err = { 0 };
    int code;
    if (!cli_parse(&cmd_walk, &o, &args, argc, argv, &code)) return code;
    if (!(code = ask_open(&a, &cmd_walk, args.v[0], &o))) {
        infer_vindex_info info = infer_vindex_describe_index(a.v);
        infer_hit *h = NULL;
        int most = o.top; // a layer has no more features
        for (int l = 0, widest = 0; l < info.n_layers; l++) {
            int n = infer_vindex_n_features(a.v, l);
            if (n > widest) widest = n;
            if (l == info.n_layers - 1 && most > widest) most = widest > 0 ? widest : 1;
        }
        if (o.experts)
            code = print_experts(&a, args.v[1], o.top, o.json);
        else if (!(h = mem_alloc((size_t)info.n_layers * (size_t)most, sizeof *h)))
            code = cli_error(EXIT_FAILED, "out of memory");
        if (!o.experts && !code) {
            int n = infer_vindex_walk(a.v, args.v[1], h, most, &a.q, &err);
            code = n < 0 ? cli_fail(&err) : print_walk(&a, args.v[1], h, n, o.json);
        }
        mem_free(h);
    }
    ask_close(&a);
    return cli_flush(code);
}

const cli_command cmd_walk = {
    .name = "walk",
    .args = "VINDEX PROMPT",
    .min_args = 2,
    .max_args = 2,
    .summary = "the features that a prompt's last token excites, layer by layer",
    .text = "The embedding of the last token is held against each layer's gates, without attention "
            "and without a forward pass. Scores are signed; the largest in magnitude come first.",
    .options = walk_table,
    .run = run_walk,
};

/* ---- select ---------------------------------------------------------------------------------- */

static const cli_option select_table[] = {
    ASK_WHERE("all"),
    ASK_TOP("features (default: 20)"),
    { "--min-score", "X", OPT_FLOAT, offsetof(ask_options, min_score), .min = -1e30, .max = 1e30,
      .help = "leave out features whose first token scores less" },
    { "--order", NULL, OPT_CHOICE, offsetof(ask_options, order), .choices = "score|layer",
      .help = "score (default): how strongly the feature writes its first token; or layer" },
    ASK_MACHINE,
};

static int run_select(int argc, char **argv)
{
    ask_options o = { .top = 20 };
    cli_args args;
    asking a = { 0 };
    infer_error err = { 0 };
    int code;
    if (!cli_parse(&cmd_select, &o, &args, argc, argv, &code)) return code;
    if (args.n < 2 && !o.relation && !o.layers && !o.band)
        return cli_usage(&cmd_select, "expected TEXT, --relation, --layers or --band");
    infer_edge *e = mem_alloc((size_t)o.top, sizeof *e);
    if (!e) return cli_error(EXIT_FAILED, "out of memory");
    if (!(code = ask_open(&a, &cmd_select, args.v[0], &o))) {
        a.q.entity = args.n > 1 ? args.v[1] : NULL;
        int n = infer_vindex_select(a.v, e, o.top, &a.q, &err);
        if (n < 0)
            code = cli_fail(&err);
        else if (o.json)
            code = cli_json_print(json_pack("{s:o}", "edges", edges_json(&a, e, n)));
        else if (n)
            print_edges(&a, e, n, false);
        else
            cli_warn("no feature matches");
    }
    ask_close(&a);
    mem_free(e);
    return cli_flush(code);
}

const cli_command cmd_select = {
    .name = "select",
    .args = "VINDEX [TEXT]",
    .min_args = 1,
    .max_args = 2,
    .summary = "features by the tokens they speak for, or by label",
    .text =
        "TEXT is looked for, in any case, in all tokens kept for a feature; those that hold it are "
        "shown first.",
    .options = select_table,
    .run = run_select,
};

/* ---- relations ------------------------------------------------------------------------------- */

static const cli_option relations_table[] = {
    ASK_TOP("relations (default: 50)"),
    ASK_MACHINE,
};

static int run_relations(int argc, char **argv)
{
    ask_options o = { .top = 50 };
    cli_args args;
    asking a = { 0 };
    infer_error err = { 0 };
    int code;
    if (!cli_parse(&cmd_relations, &o, &args, argc, argv, &code)) return code;
    infer_relation *r = mem_alloc((size_t)o.top, sizeof *r);
    if (!r) return cli_error(EXIT_FAILED, "out of memory");
    code = ask_open(&a, &cmd_relations, args.v[0], &o);
    int n = code ? 0 : infer_vindex_relations(a.v, r, o.top, &err);
    if (n < 0) code = cli_fail(&err);
    json_t *list = json_array();
    if (n > 0 && !o.json)
        printf("%s%8s  %-7s %9s  %-24s examples%s\n", cli_bold(stdout), "features", "layers",
               "max score", "relation", cli_plain(stdout));
    for (int i = 0; i < n; i++) {
        json_t *examples = json_array();
        infer_edge e = { .first_layer = r[i].first_layer, .last_layer = r[i].last_layer };
        char layers[32];
        if (!o.json)
            printf("%8d  %-7s %9.2f  %-24.24s", r[i].count, layer_text(layers, &e),
                   (double)r[i].max_score, r[i].name);
        for (int j = 0; j < 3 && r[i].examples[j]; j++) {
            json_array_append_new(examples, text(r[i].examples[j]));
            if (!o.json) fputs(j ? ", " : " ", stdout), put(r[i].examples[j], 30);
        }
        if (!o.json) putchar('\n');
        json_array_append_new(
            list, json_pack("{s:o, s:i, s:f, s:i, s:i, s:o}", "name", text(r[i].name), "count",
                            r[i].count, "max_score", (double)r[i].max_score, "first_layer",
                            r[i].first_layer, "last_layer", r[i].last_layer, "examples", examples));
    }
    if (!code && o.json)
        code = cli_json_print(json_pack("{s:O}", "relations", list));
    else if (!code && n == 0)
        cli_warn("%s: no labels: expected feature_labels.json or relation_clusters.json, which "
                 "'infer extract --clusters N' makes",
                 args.v[0]);
    json_decref(list);
    ask_close(&a);
    mem_free(r);
    return cli_flush(code);
}

const cli_command cmd_relations = {
    .name = "relations",
    .args = "VINDEX",
    .min_args = 1,
    .max_args = 1,
    .summary = "the labels of features, how many have each, and examples",
    .options = relations_table,
    .run = run_relations,
};

/* ---- stats ----------------------------------------------------------------------------------- */

static const cli_option stats_table[] = { ASK_MACHINE };

static int print_stats(const asking *a, const char *path, bool json)
{
    static const char *const names[] = { "syntax", "knowledge", "output" };
    infer_vindex_info i = infer_vindex_describe_index(a->v);
    bool banded = i.bands[2][1] > 0;
    if (json) {
        json_t *bands = banded ? json_object() : json_null(), *layers = json_array();
        for (int b = 0; banded && b < 3; b++)
            json_object_set_new(bands, names[b], json_pack("[i, i]", i.bands[b][0], i.bands[b][1]));
        for (int l = 0; l < i.n_layers; l++)
            json_array_append_new(layers, json_integer(infer_vindex_n_features(a->v, l)));
        return cli_json_print(json_pack(
            "{s:o, s:o, s:o, s:o, s:o, s:o, s:i, s:i, s:i, s:i, s:i, s:I, s:I, s:I, s:b, s:b, s:b, "
            "s:b, s:o, s:o}",
            "path", text(path), "model", text(i.model), "family", text(i.family), "level",
            text(i.level), "dtype", text(i.dtype), "quant", text(i.quant), "n_layers", i.n_layers,
            "d_model", i.d_model, "d_ff", i.d_ff, "n_vocab", i.n_vocab, "top_k", i.top_k,
            "n_features", (json_int_t)i.n_features, "n_labelled", (json_int_t)i.n_labelled, "bytes",
            (json_int_t)i.bytes, "has_attention", i.has_attention, "has_ffn", i.has_ffn,
            "has_tokenizer", i.has_tokenizer, "has_meta", i.has_meta, "layer_bands", bands,
            "features", layers));
    }
    char size[32];
    printf("vindex    ");
    put(path, 0);
    printf("\nmodel     ");
    put(i.model, 60);
    printf(" (%s), %d layers of width %d, FFN %d, vocabulary %d\n", i.family, i.n_layers, i.d_model,
           i.d_ff, i.n_vocab);
    printf("storage   level %s, %s, quant %s, %s in the files opened\n", i.level, i.dtype, i.quant,
           cli_bytes(size, i.bytes));
    printf("features  %llu, %llu with tokens (%d of each)\n", (unsigned long long)i.n_features,
           (unsigned long long)i.n_labelled, i.top_k);
    printf("bands     ");
    for (int b = 0; banded && b < 3; b++)
        printf("%s%s %d-%d", b ? ", " : "", names[b], i.bands[b][0], i.bands[b][1]);
    printf("%s\n", banded ? "" : "none");
    printf("holds     gates%s%s%s%s\n", i.has_meta ? ", labels" : "",
           i.has_tokenizer ? ", tokenizer" : "", i.has_ffn ? ", FFN weights" : "",
           i.has_attention ? ", attention" : "");
    return EXIT_DONE;
}

static int run_stats(int argc, char **argv)
{
    ask_options o = { 0 };
    cli_args args;
    asking a = { 0 };
    int code;
    if (!cli_parse(&cmd_stats, &o, &args, argc, argv, &code)) return code;
    if (!(code = ask_open(&a, &cmd_stats, args.v[0], &o)))
        code = print_stats(&a, args.v[0], o.json);
    ask_close(&a);
    return cli_flush(code);
}

const cli_command cmd_stats = {
    .name = "stats",
    .args = "VINDEX",
    .min_args = 1,
    .max_args = 1,
    .summary = "what a vindex holds",
    .options = stats_table,
    .run = run_stats,
};

/* ---- neighbours ------------------------------------------------------------------------------ */

static const cli_option neighbours_table[] = {
    ASK_TOP("tokens (default: 10)"),
    ASK_MACHINE,
};

static int run_neighbours(int argc, char **argv)
{
    ask_options o = { .top = 10 };
    cli_args args;
    asking a = { 0 };
    infer_error err = { 0 };
    int code;
    if (!cli_parse(&cmd_neighbours, &o, &args, argc, argv, &code)) return code;
    infer_token_score *t = mem_alloc((size_t)o.top, sizeof *t);
    if (!t) return cli_error(EXIT_FAILED, "out of memory");
    code = ask_open(&a, &cmd_neighbours, args.v[0], &o);
    int n = code ? 0 : infer_vindex_neighbours(a.v, args.v[1], t, o.top, &err);
    if (n < 0) code = cli_fail(&err);
    json_t *list = json_array();
    if (n > 0 && !o.json)
        printf("%s%7s %8s  token%s\n", cli_bold(stdout), "cosine", "id", cli_plain(stdout));
    for (int i = 0; i < n; i++) {
        const char *s = infer_vindex_token(a.v, t[i].token);
        if (o.json) {
            json_array_append_new(list, json_pack("{s:i, s:o, s:f}", "id", (int)t[i].token, "token",
                                                  text(s), "cosine", (double)t[i].score));
            continue;
        }
        printf("%7.4f %8d  ", (double)t[i].score, (int)t[i].token);
        put(s, 60);
        putchar('\n');
    }
    if (!code && o.json)
        code = cli_json_print(json_pack("{s:o, s:O}", "text", text(args.v[1]), "neighbours", list));
    json_decref(list);
    ask_close(&a);
    mem_free(t);
    return cli_flush(code);
}

const cli_command cmd_neighbours = {
    .name = "neighbours",
    .args = "VINDEX TEXT",
    .min_args = 2,
    .max_args = 2,
    .summary = "tokens whose embeddings are nearest to a text's",
    .text = "The text's own token is left out, in any spelling of case and space.",
    .options = neighbours_table,
    .run = run_neighbours,
};

/* ---- hnsw ------------------------------------------------------------------------------------ */

static const cli_option hnsw_table[] = {
    { "--check", NULL, OPT_FLAG, offsetof(ask_options, check),
      .help = "measure recall of the best 10, layer by layer, and compare checksums" },
    { "--queries", "N", OPT_INT, offsetof(ask_options, n_check), .min = 1, .max = 100000,
      .help = "embeddings to check with (default: 200)" },
    { "--ef", "N", OPT_INT, offsetof(ask_options, ef), .min = 1, .max = 100000,
      .help = "beam of searches (default: 200)" },
    ASK_MACHINE,
};

static int run_hnsw(int argc, char **argv)
{
    ask_options o = { .hnsw = true, .n_check = 200 };
    cli_args args;
    asking a = { 0 };
    infer_error err = { 0 };
    int code;
    if (!cli_parse(&cmd_hnsw, &o, &args, argc, argv, &code)) return code;
    double start = cli_now(), built, worst = 1, sum = 0;
    if ((code = ask_open(&a, &cmd_hnsw, args.v[0], &o))) {
        ask_close(&a);
        return code;
    }
    built = cli_now() - start;
    infer_vindex_info info = infer_vindex_describe_index(a.v);
    bool saved = infer_vindex_graphs_mapped(a.v);
    float *recall = mem_zero((size_t)info.n_layers + 1, sizeof *recall);
    if (!recall) code = cli_error(EXIT_FAILED, "out of memory");
    if (!code && !saved && infer_vindex_save_graphs(a.v, &err)) code = cli_fail(&err);
    if (!code && o.check && infer_vindex_check_graphs(a.v, o.n_check, recall, &err))
        code = cli_fail(&err);
    json_t *list = json_array();
    for (int l = 0; l < info.n_layers; l++) {
        json_array_append_new(list, json_real((double)recall[l]));
        sum += (double)recall[l];
        if ((double)recall[l] < worst) worst = (double)recall[l];
    }
    if (!code && o.json) {
        json_t *root = json_pack("{s:b, s:f}", "built", !saved, "seconds", built);
        if (o.check) json_object_set(root, "recall", list);
        code = cli_json_print(root);
    } else if (!code) {
        printf("%s: graphs of %llu features %s in %.2f s\n", args.v[0],
               (unsigned long long)info.n_features, saved ? "mapped" : "built and saved", built);
        for (int l = 0; o.check && l < info.n_layers; l++)
            printf("layer %-3d recall %.4f\n", l, (double)recall[l]);
        if (o.check)
            printf("mean %.4f, worst %.4f of %d queries' best 10, beam %d\n", sum / info.n_layers,
                   worst, o.n_check, o.ef ? o.ef : 200);
    }
    json_decref(list);
    mem_free(recall);
    ask_close(&a);
    return cli_flush(code);
}

const cli_command cmd_hnsw = {
    .name = "hnsw",
    .args = "VINDEX",
    .min_args = 1,
    .max_args = 1,
    .summary = "build the graphs that searches with --hnsw use, or check them",
    .text = "They are written to hnsw.bin in the folder, and mapped from there afterwards.",
    .options = hnsw_table,
    .run = run_hnsw,
};
