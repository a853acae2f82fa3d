/*
 * generation.c: what the commands that generate text share: the meaning of their options and the
 * statistics.
 */
#include <string.h>
#include <sys/random.h>

#include "cli/cli.h"

void cli_settle_sampling(infer_sampling *s, const infer_sampling *usual)
{
    if (s->top_p == 0) s->temperature = 0;
    if (s->repeat_window == 0) {
        s->repeat_penalty = 1;
        s->frequency_penalty = s->presence_penalty = 0;
    }
    const char *idle = s->top_k != usual->top_k                   ? "--top-k"
                       : s->top_p > 0 && s->top_p != usual->top_p ? "--top-p"
                       : s->min_p != usual->min_p                 ? "--min-p"
                                                                  : NULL;
    if (s->temperature == 0 && idle) cli_warn("%s changes nothing at --temp 0", idle);
    // A seed of 32 bits is short enough to be typed again.
    uint32_t fresh;
    if (!s->seed && s->temperature > 0 && getrandom(&fresh, sizeof fresh, 0) == sizeof fresh)
        s->seed = fresh ? fresh : 1;
}

int cli_session_check(const cli_command *c, cli_session *s, const infer_sampling *usual)
{
    int code = cli_engine_check(c, &s->engine);
    if (code) return code;
    for (int i = 0; i < s->stop.n; i++)
        if (!*s->stop.v[i]) return cli_usage(c, "--stop: expected a text, found ''");
    cli_settle_sampling(&s->sampling, usual);
    return EXIT_DONE;
}

infer_session_options cli_session_options(const cli_session *s)
{
    bool off = s->draft && !strcmp(s->draft, "off"),
         always = s->draft && !strcmp(s->draft, "always");
    return (infer_session_options){
        .n_ctx = s->ctx,
        .n_threads = s->engine.threads,
        .max_tokens = s->n > 0 ? s->n : 0,
        .backend = s->engine.backend,
        .cpu_level = s->engine.cpu,
        .kv_type = s->engine.kv_type,
        .kv_type_k = s->engine.kv_type_k,
        .kv_type_v = s->engine.kv_type_v,
        .exact = s->engine.exact,
        .walk_from = s->engine.walk_from,
        .walk_keep = s->engine.keep,
        .ignore_eos = s->ignore_eos,
        .sampling = s->sampling,
        .stop = s->stop.v,
        .log = cli_log,
        .draft = off      ? -1
                 : always ? 7
                          : 0,
    };
}

const char *cli_finish_name(infer_finish f)
{
    switch (f) {
    case INFER_FINISH_STOP: return "stop";
    case INFER_FINISH_LENGTH: return "length";
    case INFER_FINISH_CANCELLED: return "cancelled";
    case INFER_FINISH_NONE: break;
    }
    return "none";
}

static double rate(double n, double seconds) { return seconds > 0 ? n / seconds : 0; }

double cli_prompt_rate(const infer_stats *s) { return rate(s->n_prompt, s->prompt_s); }

// The first token comes out of the prompt's last step: n tokens take n - 1 steps.
double cli_generation_rate(const infer_stats *s)
{
    return s->n_generated > 1 ? rate(s->n_generated - 1, s->generate_s) : 0;
}

void cli_print_stats(FILE *f, const infer_stats *s, const infer_engine_info *e, float temperature)
{
    char peak[32], mapped[32], kv[32], work[32];
    uint64_t files = cli_proc_bytes("/proc/self/status", "RssFile");
    uint64_t own = cli_proc_bytes("/proc/self/status", "RssAnon");
    double tg = cli_generation_rate(s);
    fprintf(f, "\n%s             tokens    seconds      tok/s       GB/s%s\n", cli_bold(f),
            cli_plain(f));
    fprintf(f, "prompt      %7d %10.3f %10.1f\n", s->n_prompt, s->prompt_s, cli_prompt_rate(s));
    fprintf(f, "generation  %7d %10.3f %10.1f %10.1f\n", s->n_generated, s->generate_s, tg,
            tg * (double)s->bytes_per_token / 1e9);
    fprintf(f, "load                %10.3f\n", s->load_s);
    fprintf(f, "first token         %10.3f\n", s->first_token_s);
    if (s->n_drafted)
        fprintf(f, "drafts      %7d, %d of them right\n", s->n_drafted, s->n_accepted);
    fprintf(f, "memory      %s resident at most", cli_bytes(peak, cli_peak_memory()));
    if (own)
        fprintf(f, ", now %s of files, which the system can take back, and %s",
                cli_bytes(mapped, files), cli_bytes(work, own));
    fprintf(f, "\nreserved    %s file, %s KV cache (K %s, V %s), %s work",
            cli_bytes(mapped, s->mapped_bytes), cli_bytes(kv, s->kv_bytes), e->kv_type_k,
            e->kv_type_v, cli_bytes(work, s->work_bytes));
    if (s->repacked_bytes) fprintf(f, ", %s repacked", cli_bytes(peak, s->repacked_bytes));
    fputc('\n', f);
    fprintf(f, "machine     %s, %s, %d thread%s\n", e->backend, e->cpu_level, e->n_threads,
            e->n_threads == 1 ? "" : "s");
    fprintf(f, "finish      %s", cli_finish_name(s->finish));
    if (temperature > 0) fprintf(f, ", seed %llu", (unsigned long long)s->seed);
    fputc('\n', f);
}

void cli_print_profile(FILE *f, const char *name, const infer_profile_row *rows, int n)
{
    double all = 0;
    for (int i = 0; i < n; i++)
        all += rows[i].seconds;
    fprintf(f, "\n%s%-2s %-40s    calls         ms  share     GB/s    GOP/s%s\n", cli_bold(f), name,
            "operation", cli_plain(f));
    for (const infer_profile_row *r = rows; r < rows + n; r++) {
        fprintf(f, "   %-16s %-16s %-6s %8llu %10.2f %5.1f%%", r->op, r->what, r->type,
                (unsigned long long)r->calls, r->seconds * 1e3, rate(100 * r->seconds, all));
        if (r->bytes || r->ops) fprintf(f, " %8.1f", rate((double)r->bytes / 1e9, r->seconds));
        if (r->ops) fprintf(f, " %8.1f", rate((double)r->ops / 1e9, r->seconds));
        fputc('\n', f);
    }
}
