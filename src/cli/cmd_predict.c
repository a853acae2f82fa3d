/*
 * cmd_predict.c: `infer predict`: the likeliest next tokens and their probabilities over the whole
 * vocabulary.
 */
#include <limits.h>
#include <string.h>

#include "base/mem.h"
#include "cli/cli.h"

typedef struct predict_options {
    cli_engine engine;
    int top, ctx;
    const char *mode;
    bool json;
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
                      const char *mode, double ms)
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
    return cli_json_print(json_pack("{s:o,s:o,s:s,s:f}", "prompt", cli_json_text(prompt, n_prompt),
                                    "predictions", list, "mode", mode, "latency_ms", ms));
}

static int predict(const infer_model *model, const predict_options *o, const infer_tokenizer *tok,
                   const char *prompt, size_t n_prompt, const char *mode)
{
    infer_error err = { 0 };
    infer_engine *engine = NULL;
    infer_sequence *seq = NULL;
    infer_prediction *best = NULL;
    int32_t *ids = NULL;
    size_t n = 0;
    int last, code = EXIT_DONE, n_vocab = infer_model_describe(model).n_vocab;
    int top = o->top < n_vocab ? o->top : n_vocab;
    infer_engine_options eo = cli_engine_options(&o->engine);
    eo.n_ctx = o->ctx;
    eo.max_sequences = 1;
    if (!strcmp(mode, "dense") && o->engine.index)
        eo.walk_from = infer_model_describe(model).n_layers; // all from the model's own weights
    if (cli_prompt_ids(tok, &ids, &n, prompt, n_prompt, &err)) goto failed;
    if (!n) {
        code = cli_error(EXIT_USAGE, "predict: the prompt is empty and the model has no BOS token");
        goto end;
    }
    if (infer_engine_new(&engine, model, &eo, &err)) goto failed;
    cli_interrupt_engine(engine);
    if (!(seq = infer_sequence_new(engine, &err))) goto failed;
    if (infer_sequence_rope_length(seq, (int)n, &err)) goto failed;
    double start = cli_now();
    if (cli_feed(engine, seq, ids, n, INFER_WANT_LOGITS, &last, &err)) goto failed;
    double ms = (cli_now() - start) * 1e3;
    cli_progress_end();
    if (!(best = mem_alloc((size_t)top, sizeof *best))) {
        code = cli_error(EXIT_FAILED, "predict: out of memory");
        goto end;
    }
    top = infer_top_k(infer_logits(engine, last), n_vocab, top, best);
    if (o->json)
        code = print_json(tok, prompt, n_prompt, ids, n, best, top, mode, ms);
    else
        print_table(tok, ids, n, best, top);
    goto end;
failed:
    code = cli_fail(&err);
end:
    cli_interrupt_engine(NULL);
    mem_free(best);
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
    .text = "Probabilities are over the whole vocabulary. Without PROMPT it is read from standard "
            "input, less one final newline.",
    .options = options,
    .run = run,
};
