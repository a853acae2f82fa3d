/*
 * cmd_predict.c: `infer predict`: the likeliest next tokens and their probabilities over the whole
 * vocabulary.
 */
#include <limits.h>
#include <string.h>

#include "base/mem.h"
#include "cli/cli.h"
#include "infer_vindex.h"

typedef struct predict_options {
    cli_engine engine;
    int top, ctx;
    const char *mode;
    float threshold;
    bool json, no_facts;
} predict_options;

static const cli_option options[] = {
    { "--top", "K", OPT_INT, offsetof(predict_options, top), .min = 1, .max = INT_MAX,
      .help = "tokens to show (default: 5)" },
    { "--mode", "MODE", OPT_CHOICE, offsetof(predict_options, mode),
      .choices = "dense|walk|compare",
      .help = "from the model (default), from the index (default with --ffn or --patch), both" },
    { "--ctx", "N", OPT_INT, offsetof(predict_options, ctx), .min = 1, .max = INT_MAX,
      .help = "context in tokens (default: the trained one, at most 8192)" },
    ENGINE_OPTIONS(predict_options),
    { "--no-facts", NULL, OPT_FLAG, offsetof(predict_options, no_facts),
      .help = "leave facts stored by key out (knn_store.bin of an index, 'infer insert --key')" },
    { "--fact-cosine", "X", OPT_FLOAT, offsetof(predict_options, threshold), .min = 0, .max = 1,
      .help = "how alike the prompt's state must be to a fact's key (default: 0.75)" },
    { "--json", NULL, OPT_FLAG, offsetof(predict_options, json), .help = "one JSON object" },
    { 0 },
};

// What the token adds to the text: decoding it behind its predecessors keeps a leading space that
// the start of a text would lose. *text is freed with infer_free.
static char *piece_of(const infer_tokenizer *tok, const int32_t *ids, size_t n, int32_t id)
{
    int32_t some[5];
    size_t k = n < 4 ? n : 4, n_before, n_after;
    for (size_t i = 0; i < k; i++)
        some[i] = ids[n - k + i];
    some[k] = id;
    char *before, *after;
    if (infer_detokenize(tok, &before, &n_before, some, k, false, NULL)) return NULL;
    if (infer_detokenize(tok, &after, &n_after, some, k + 1, false, NULL)) {
        infer_free(before);
        return NULL;
    }
    bool extends = n_after >= n_before && !memcmp(before, after, n_before);
    if (extends) memmove(after, after + n_before, n_after - n_before + 1);
    infer_free(before);
    if (extends) return after;
    infer_free(after);
    return NULL;
}

/* Feeds the prompt, its last token in a step of its own whose FFN inputs [n_layers, d_model] are
 * kept in x, if there is one; *last: the row of the logits. */
static infer_status feed(infer_engine *e, infer_sequence *s, const int32_t *ids, size_t n, float *x,
                         int *last, infer_error *err)
{
    if (!x) return cli_feed(e, s, ids, n, INFER_WANT_LOGITS, last, err);
    infer_status st = n > 1 ? cli_feed(e, s, ids, n - 1, INFER_WANT_NOTHING, last, err) : INFER_OK;
    infer_capture c = { .ffn_in = x };
    infer_row row = { .seq = s, .token = ids[n - 1], .want = INFER_WANT_LOGITS };
    if (!st) st = infer_engine_capture(e, &c, err);
    if (!st) st = infer_step(e, &row, 1, err);
    *last = 0;
    return st;
}

/* The fact's target in front, with certainty; what the model says behind it. */
static void put_first(infer_prediction *p, int n, int32_t id)
{
    int at = 0;
    while (at < n - 1 && p[at].id != id)
        at++;
    infer_prediction first = { .id = id, .probability = 1 };
    if (p[at].id == id) first.logit = p[at].logit;
    memmove(p + 1, p, (size_t)at * sizeof *p);
    p[0] = first;
}

static json_t *fact_json(const infer_knn_fact *f)
{
    return json_pack("{s:o, s:o, s:o, s:i, s:f, s:f}", "entity",
                     cli_json_text(f->entity, strlen(f->entity)), "relation",
                     cli_json_text(f->relation, strlen(f->relation)), "target",
                     cli_json_text(f->target, strlen(f->target)), "layer", f->layer, "cosine",
                     (double)f->cosine, "confidence", (double)f->confidence);
}

static void print_fact(const infer_knn_fact *f)
{
    fputs("fact by key: ", stdout);
    cli_put_text(stdout, f->entity, strlen(f->entity), 60);
    fputs(" / ", stdout);
    cli_put_text(stdout, f->relation, strlen(f->relation), 60);
    fputs(" / ", stdout);
    cli_put_text(stdout, f->target, strlen(f->target), 60);
    printf(" (layer %d, cosine %.3f, confidence %.2f)\n", f->layer, (double)f->cosine,
           (double)f->confidence);
}

static void print_table(const infer_tokenizer *tok, const int32_t *ids, size_t n,
                        const infer_prediction *p, int k)
{
    printf("%s   #       id  probability     logit  token%s\n", cli_bold(stdout),
           cli_plain(stdout));
    for (int i = 0; i < k; i++) {
        char *text = piece_of(tok, ids, n, p[i].id);
        const char *shown = text ? text : infer_token_text(tok, p[i].id);
        printf("%4d %8d %12.6f %9.3f  '", i + 1, (int)p[i].id, p[i].probability,
               (double)p[i].logit);
        if (shown) cli_put_text(stdout, shown, strlen(shown), 60);
        puts("'");
        infer_free(text);
    }
}

static int print_json(const infer_tokenizer *tok, const char *prompt, size_t n_prompt,
                      const int32_t *ids, size_t n, const infer_prediction *p, int k,
                      const char *mode, double ms, const infer_knn_fact *fact)
{
    json_t *list = json_array();
    for (int i = 0; i < k; i++) {
        char *text = piece_of(tok, ids, n, p[i].id);
        const char *shown = text ? text : infer_token_text(tok, p[i].id);
        if (!shown) shown = "";
        json_array_append_new(list, json_pack("{s:o,s:i,s:f,s:f}", "token",
                                              cli_json_text(shown, strlen(shown)), "id",
                                              (int)p[i].id, "probability", p[i].probability,
                                              "logit", (double)p[i].logit));
        infer_free(text);
    }
    json_t *o = json_pack("{s:o,s:o,s:s,s:f}", "prompt", cli_json_text(prompt, n_prompt),
                          "predictions", list, "mode", mode, "latency_ms", ms);
    if (fact) json_object_set_new(o, "fact", fact_json(fact));
    return cli_json_print(o);
}

static int predict(const infer_model *model, const predict_options *o, const infer_tokenizer *tok,
                   const char *prompt, size_t n_prompt, const char *mode)
{
    infer_error err = { 0 };
    infer_engine *engine = NULL;
    infer_sequence *seq = NULL;
    infer_prediction *best = NULL;
    const infer_vindex *index = o->no_facts ? NULL : o->engine.index;
    infer_knn_fact fact;
    float *inputs = NULL;
    int32_t *ids = NULL;
    size_t n = 0;
    infer_model_info info = infer_model_describe(model);
    int last, code = EXIT_DONE, n_vocab = info.n_vocab;
    int top = o->top < n_vocab ? o->top : n_vocab;
    infer_engine_options eo = cli_engine_options(&o->engine);
    eo.n_ctx = o->ctx;
    eo.max_sequences = 1;
    if (!strcmp(mode, "dense") && o->engine.index)
        eo.walk_from = info.n_layers; // all from the model's own weights
    if (cli_prompt_ids(tok, &ids, &n, prompt, n_prompt, &err)) goto failed;
    if (!n) {
        code = cli_error(EXIT_USAGE, "predict: the prompt is empty and the model has no BOS token");
        goto end;
    }
    if (infer_engine_new(&engine, model, &eo, &err)) goto failed;
    cli_interrupt_engine(engine);
    if (!(seq = infer_sequence_new(engine, &err))) goto failed;
    if (infer_sequence_rope_length(seq, (int)n, &err)) goto failed;
    bool asks = index && infer_vindex_n_facts(index, o->engine.patch) > 0;
    if (asks &&
        !(inputs = mem_alloc((size_t)info.n_layers * (size_t)info.d_model, sizeof *inputs))) {
        code = cli_error(EXIT_FAILED, "predict: out of memory");
        goto end;
    }
    double start = cli_now();
    if (feed(engine, seq, ids, n, inputs, &last, &err)) goto failed;
    double ms = (cli_now() - start) * 1e3;
    cli_progress_end();
    if (!(best = mem_alloc((size_t)top, sizeof *best))) {
        code = cli_error(EXIT_FAILED, "predict: out of memory");
        goto end;
    }
    top = infer_top_k(infer_logits(engine, last), n_vocab, top, best);
    int found =
        asks ? infer_vindex_recall(index, o->engine.patch, inputs, o->threshold, &fact, &err) : 0;
    if (found < 0) goto failed;
    if (found) put_first(best, top, fact.token);
    if (o->json)
        code = print_json(tok, prompt, n_prompt, ids, n, best, top, mode, ms, found ? &fact : NULL);
    else {
        if (found) print_fact(&fact);
        print_table(tok, ids, n, best, top);
    }
    goto end;
failed:
    code = cli_fail(&err);
end:
    cli_interrupt_engine(NULL);
    mem_free(best);
    mem_free(inputs);
    infer_free(ids);
    infer_sequence_free(seq);
    infer_engine_free(engine);
    return code;
}

static int run(int argc, char **argv)
{
    predict_options o = { .top = 5 };
    cli_args args;
    int code;
    if (!cli_parse(&cmd_predict, &o, &args, argc, argv, &code)) return code;
    if ((code = cli_engine_check(&cmd_predict, &o.engine))) return code;
    if (!o.mode) o.mode = o.engine.ffn || o.engine.patches.n ? "walk" : "dense";
    o.engine.needs_index = strcmp(o.mode, "dense") != 0;
    o.engine.facts = !o.no_facts;
    infer_model *model;
    if ((code = cli_model_open(&model, args.v[0], &o.engine))) return code;
    const infer_tokenizer *tok = cli_tokenizer(model, args.v[0]);
    char *input = NULL;
    const char *prompt = args.v[1];
    size_t n = prompt ? strlen(prompt) : 0;
    if (!tok)
        code = EXIT_FAILED;
    else if (!prompt)
        code = cli_read_input(&input, &n, "the prompt");
    bool compare = !strcmp(o.mode, "compare");
    for (int i = 0; i <= compare && !code; i++) {
        const char *mode = compare ? i ? "walk" : "dense" : o.mode;
        if (compare && !o.json) printf("%s%s\n", i ? "\n" : "", mode);
        code = predict(model, &o, tok, prompt ? prompt : input, n, mode);
    }
    mem_free(input);
    cli_model_close(model, &o.engine);
    return code;
}

const cli_command cmd_predict = {
    .name = "predict",
    .args = "MODEL [PROMPT]",
    .min_args = 1,
    .max_args = 2,
    .summary = "the likeliest next tokens, with probabilities",
    .text =
        "Probabilities are over the whole vocabulary. Without PROMPT it is read from standard "
        "input, less one final newline. Where the prompt's state is alike a fact's key, the fact's "
        "target comes first with probability 1, and the model's own answers after it.",
    .options = options,
    .run = run,
};
