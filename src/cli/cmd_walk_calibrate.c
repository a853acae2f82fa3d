/*
 * cmd_walk_calibrate.c: `infer walk-calibrate`: what a sparse walk would cost and gain on this
 * model, as a table, a picture and a file of thresholds for --sparse.
 */
#include <math.h>
#include <string.h>

#include "base/map.h"
#include "base/mem.h"
#include "cli/cli.h"
#include "infer_vindex.h"

#define TEXT_LIMIT (64u << 20)

typedef struct calibrate_options {
    cli_engine engine;
    const char *text, *out, *svg;
    int tokens, held;
    bool gate, json;
} calibrate_options;

static const double shares[] = { 1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1 };
#define N_SHARES COUNT_OF(shares)

static const cli_option table[] = {
    { "--ffn", "VINDEX", OPT_TEXT, offsetof(calibrate_options, engine.ffn),
      .help = "the index, where MODEL is not one itself; it needs down_features.bin" },
    { "--text", "FILE", OPT_TEXT, offsetof(calibrate_options, text),
      .help = "text: its first part sets the thresholds, the rest is measured" },
    { "--tokens", "N", OPT_INT, offsetof(calibrate_options, tokens), .min = 16, .max = 1 << 20,
      .help = "tokens that set the thresholds (default: 1024)" },
    { "--held", "N", OPT_INT, offsetof(calibrate_options, held), .min = 16, .max = 1 << 20,
      .help = "tokens that are measured (default: 320)" },
    { "--no-gate", NULL, OPT_FLAG, offsetof(calibrate_options, gate),
      .help = "leave out the choice by the gate alone" },
    { "-o", "FILE", OPT_TEXT, offsetof(calibrate_options, out),
      .help = "write the thresholds, for --sparse" },
    { "--svg", "FILE", OPT_TEXT, offsetof(calibrate_options, svg), .help = "draw the frontier" },
    MACHINE_OPTIONS(calibrate_options),
    { "--json", NULL, OPT_FLAG, offsetof(calibrate_options, json), .help = "one JSON object" },
    { 0 },
};

static bool show(double share, void *user)
{
    (void)user;
    cli_progress("calibrating %3.0f%%", 100 * share);
    return !cli_interrupted();
}

/* ---- output ---------------------------------------------------------------------------------- */

static void print_table(const infer_walk_point *p, int n)
{
    printf("%-8s %6s %9s %9s %7s %7s %9s\n", "choice", "kept", "KL", "max KL", "top-1", "bytes",
           "FFN speed");
    for (int i = 0; i < n; i++)
        printf("%-8s %5.1f%% %9.5f %9.4f %6.1f%% %6.1f%% %8.2fx\n",
               p[i].by_gate ? "gate" : "product", 100 * p[i].kept, p[i].kl, p[i].max_kl,
               100 * p[i].top1, 100 * p[i].bytes,
               p[i].ffn_seconds > 0 ? p[i].dense_ffn_seconds / p[i].ffn_seconds : 0);
}

static json_t *point_json(const infer_walk_point *p)
{
    return json_pack("{s:s, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "choice",
                     p->by_gate ? "gate" : "product", "kept", p->kept, "kl", p->kl, "max_kl",
                     p->max_kl, "top1", p->top1, "bytes", p->bytes, "ffn_seconds", p->ffn_seconds,
                     "dense_ffn_seconds", p->dense_ffn_seconds, "token_seconds", p->token_seconds);
}

static json_t *points_json(const infer_walk_point *p, int n, const float *thresholds, int n_layers)
{
    json_t *list = json_array();
    for (int i = 0; i < n; i++) {
        json_t *o = point_json(&p[i]);
        if (thresholds && !p[i].by_gate) {
            json_t *t = json_array();
            for (int l = 0; l < n_layers; l++)
                json_array_append_new(t, json_real((double)thresholds[i * n_layers + l]));
            json_object_set_new(o, "thresholds", t);
        }
        json_array_append_new(list, o);
    }
    return list;
}

static int write_text(const char *path, json_t *json)
{
    FILE *f = fopen(path, "wb");
    bool ok = f && json && !json_dumpf(json, f, JSON_INDENT(1) | JSON_REAL_PRECISION(9)) &&
              fputc('\n', f) >= 0;
    if (f && fclose(f)) ok = false;
    json_decref(json);
    return ok ? EXIT_DONE : cli_error(EXIT_FAILED, "%s: cannot be written", path);
}

/* KL on a logarithmic scale against the share of the features that is kept. */
static double svg_x(double kept) { return 80 + 520 * kept; }
static double svg_y(double kl)
{
    double e = log10(kl < 1e-5 ? 1e-5 : kl > 10 ? 10 : kl); // -5 to 1
    return 330 - 290 * (e + 5) / 6;
}

static void svg_text(FILE *f, const char *s)
{
    for (; *s; s++)
        if (*s == '<' || *s == '&')
            fputs(*s == '<' ? "&lt;" : "&amp;", f);
        else
            fputc(*s, f);
}

static void svg_axes(FILE *f)
{
    static const char *const kl[] = { "10", "1", "0.1", "0.01", "0.001", "0.0001", "≤ 0.00001" };
    for (int i = 0; i < COUNT_OF(kl); i++) {
        double y = svg_y(pow(10, 1 - i));
        fprintf(f, "<line x1=\"80\" x2=\"600\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"#ddd\"/>", y, y);
        fprintf(f, "<text x=\"72\" y=\"%.1f\" text-anchor=\"end\">%s</text>\n", y + 4, kl[i]);
    }
    for (int i = 0; i <= 10; i += 2) {
        double x = svg_x(i / 10.0);
        fprintf(f, "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"40\" y2=\"330\" stroke=\"#eee\"/>", x, x);
        fprintf(f, "<text x=\"%.1f\" y=\"350\" text-anchor=\"middle\">%d%%</text>\n", x, 10 * i);
    }
    fputs("<text x=\"340\" y=\"376\" text-anchor=\"middle\">features that are kept</text>\n"
          "<text x=\"14\" y=\"185\" transform=\"rotate(-90 14 185)\" text-anchor=\"middle\">"
          "mean KL to the exact model</text>\n",
          f);
}

static void svg_curve(FILE *f, const infer_walk_point *p, int n, bool by_gate, int place)
{
    const char *colour = by_gate ? "#c0392b" : "#1f6fb4";
    bool any = false;
    fprintf(f, "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"2\" points=\"", colour);
    for (int i = 0; i < n; i++)
        if (p[i].by_gate == by_gate) {
            fprintf(f, "%.1f,%.1f ", svg_x(p[i].kept), svg_y(p[i].kl));
            any = true;
        }
    fputs("\"/>\n", f);
    for (int i = 0; i < n; i++) {
        if (p[i].by_gate != by_gate) continue;
        fprintf(f, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4\" fill=\"%s\">", svg_x(p[i].kept),
                svg_y(p[i].kl), colour);
        fprintf(f,
                "<title>%.0f%% kept, KL %.5f, top-1 %.1f%%, %.0f%% of the bytes</title></circle>\n",
                100 * p[i].kept, p[i].kl, 100 * p[i].top1, 100 * p[i].bytes);
    }
    if (any)
        fprintf(f, "<text x=\"100\" y=\"%d\" fill=\"%s\">%s</text>\n", 288 + 18 * place, colour,
                by_gate ? "chosen by the gate alone" : "chosen by what they add");
}

static int write_svg(const char *path, const char *model, const infer_walk_point *p, int n)
{
    FILE *f = fopen(path, "wb");
    if (!f) return cli_error(EXIT_FAILED, "%s: cannot be written", path);
    fputs("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 640 400\" "
          "font-family=\"sans-serif\" font-size=\"12\">\n"
          "<rect width=\"640\" height=\"400\" fill=\"white\"/>\n"
          "<text x=\"80\" y=\"24\" font-size=\"14\">Sparse walk of ",
          f);
    svg_text(f, model);
    fputs("</text>\n", f);
    svg_axes(f);
    svg_curve(f, p, n, false, 0);
    svg_curve(f, p, n, true, 1);
    fputs("</svg>\n", f);
    return fclose(f) ? cli_error(EXIT_FAILED, "%s: cannot be written", path) : EXIT_DONE;
}

/* ---- the command ----------------------------------------------------------------------------- */

static int calibrate(const infer_model *model, const calibrate_options *o, const int32_t *ids,
                     int n, const char *name)
{
    infer_error err = { 0 };
    int n_layers = infer_model_describe(model).n_layers, code = EXIT_DONE;
    int first = o->tokens ? o->tokens : 1024, held = o->held ? o->held : 320;
    if (n < 64) return cli_error(EXIT_FAILED, "%s: %d tokens, expected 64 at least", o->text, n);
    if (first + held > n) { // a short text: three quarters and the rest
        first = n * 3 / 4;
        held = n - first;
    }
    infer_walk_point points[2 * N_SHARES];
    float *thresholds = mem_zero((size_t)N_SHARES * (size_t)n_layers, sizeof *thresholds);
    infer_calibrate_options c = { .struct_size = sizeof c,
                                  .ids = ids,
                                  .n_ids = first,
                                  .held = ids + first,
                                  .n_held = held,
                                  .shares = shares,
                                  .n_shares = N_SHARES,
                                  .with_gate = !o->gate,
                                  .n_threads = o->engine.threads,
                                  .progress = show };
    if (!thresholds) return cli_error(EXIT_FAILED, "walk-calibrate: out of memory");
    cli_interrupt_later(true);
    infer_status st = infer_walk_calibrate(model, &c, points, thresholds, &err);
    cli_interrupt_later(false);
    cli_progress_end();
    int n_points = N_SHARES * (c.with_gate ? 2 : 1);
    if (st)
        code = cli_fail(&err);
    else if (o->json)
        code = cli_json_print(json_pack("{s:i, s:i, s:o}", "tokens", first, "held", held, "points",
                                        points_json(points, n_points, NULL, n_layers)));
    else
        print_table(points, n_points);
    if (!code && o->out)
        code = write_text(o->out, json_pack("{s:s, s:s, s:i, s:i, s:i, s:o}", "infer",
                                            "sparse walk", "model", name, "layers", n_layers,
                                            "tokens", first, "held", held, "points",
                                            points_json(points, N_SHARES, thresholds, n_layers)));
    if (!code && o->svg) code = write_svg(o->svg, name, points, n_points);
    mem_free(thresholds);
    return code;
}

static int run(int argc, char **argv)
{
    calibrate_options o = { 0 };
    cli_args args;
    infer_model *model;
    infer_error err = { 0 };
    int code;
    if (!cli_parse(&cmd_walk_calibrate, &o, &args, argc, argv, &code)) return code;
    if (!o.text) return cli_usage(&cmd_walk_calibrate, "--text FILE is missing");
    if ((code = cli_engine_check(&cmd_walk_calibrate, &o.engine))) return code;
    char *text = NULL;
    size_t n = 0, n_ids = 0;
    int32_t *ids = NULL;
    infer_tokenize_options plain = { .no_special = true }; // pieces get their own
    if (file_read(o.text, TEXT_LIMIT, &text, &n, &err)) return cli_fail(&err);
    o.engine.needs_index = true;
    if ((code = cli_model_open(&model, args.v[0], &o.engine))) goto end;
    const infer_tokenizer *tok = cli_tokenizer(model, args.v[0]);
    if (!tok)
        code = EXIT_FAILED;
    else if (infer_tokenize(tok, &ids, &n_ids, text, n, &plain, &err))
        code = cli_fail(&err);
    if (!code) code = calibrate(model, &o, ids, n_ids > 1 << 24 ? 1 << 24 : (int)n_ids, args.v[0]);
    infer_free(ids);
    cli_model_close(model, &o.engine);
end:
    mem_free(text);
    return code;
}

const cli_command cmd_walk_calibrate = {
    .name = "walk-calibrate",
    .args = "MODEL",
    .min_args = 1,
    .max_args = 1,
    .summary = "what leaving out weak features would cost and gain",
    .text =
        "Features are chosen by what they add, |act(gate) * up| * |down row|, and, to show why, "
        "by |act(gate)| alone. 'kept' is the share of features, 'bytes' that of the FFN's bytes, "
        "KL and top-1 compare with the exact model on the held-out part of the text.",
    .options = table,
    .run = run,
};
