/*
 * cmd_doctor.c: `infer doctor`: what this machine offers, what the engine chooses and why, and with
 * a model which kernel runs for which tensor type and what slows it down.
 */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/thread.h"
#include "cli/cli.h"

#define MAX_TYPES 64

typedef struct doctor_options {
    cli_engine engine;
    bool tensors;
} doctor_options;

static const cli_option options[] = {
    MACHINE_OPTIONS(doctor_options),
    { "--tensors", NULL, OPT_FLAG, offsetof(doctor_options, tensors),
      .help = "the kernel of each matrix of MODEL" },
    { 0 },
};

/* ---- the machine ----------------------------------------------------------------------------- */

// The first word of a file; "" where there is none.
static void read_word(char word[64], const char *path)
{
    FILE *f = fopen(path, "r");
    if (!f || fscanf(f, "%63s", word) != 1) word[0] = 0;
    if (f) fclose(f);
}

// What this process may still take: the system's memory, or its control group's.
static double memory_available(void)
{
    char limit[64], used[64];
    double available = (double)cli_proc_bytes("/proc/meminfo", "MemAvailable");
    read_word(limit, "/sys/fs/cgroup/memory.max");
    read_word(used, "/sys/fs/cgroup/memory.current");
    double most = strtod(limit, NULL), room = most - strtod(used, NULL); // "max" is no number
    return most > 0 && room < available ? room : available;
}

static void print_levels(const char *chosen, const char *why)
{
    printf("levels     ");
    bool here;
    const char *name;
    for (int i = 0; (name = infer_cpu_level(i, &here)); i++)
        printf("%s%s%s", i ? ", " : "", name, here ? "" : " (not on this machine)");
    printf("\nchosen     %s: %s\n", chosen, why);
}

static int threads_of(const doctor_options *o)
{
    return o->engine.threads ? o->engine.threads : infer_default_threads();
}

static void print_machine(const doctor_options *o, const char *level)
{
    char text[160];
    const char *name, *summary;
    bool here;
    int threads = threads_of(o);
    printf("infer      %s\n", infer_version());
    infer_cpu_name(text, sizeof text);
    printf("processor  %s\n", text);
    print_levels(level, o->engine.cpu ? "as asked for" : "the best that this machine has");
    for (int i = 0; (name = infer_backend_name(i, &here, &summary)); i++)
        printf("%s %s: %s%s\n", i ? "          " : "backends  ", name, summary,
               here ? "" : " (not on this machine)");
    printf("threads    %d of %d hardware threads: %s\n", threads, thread_count_logical(),
           o->engine.threads ? "as asked for" : "the physical cores it may use");
    double available = memory_available();
    if (available > 0) printf("memory     %s available\n", cli_bytes(text, (uint64_t)available));
    cli_progress("measuring bandwidth");
    double gbs = infer_measure_bandwidth(threads) / 1e9;
    cli_progress_end();
    printf("bandwidth  %.1f GB/s read by %d thread%s\n", gbs, threads, threads == 1 ? "" : "s");
}

// What of the machine slows every model down. Returns the number of lines.
static int warn_of_machine(const doctor_options *o, const char *level)
{
    int n = 0, threads = threads_of(o), cores = infer_default_threads();
    char word[64], driver[64];
    double load = 0;
    if (strcmp(level, infer_cpu_best()) && ++n)
        printf("slow       %s was asked for, this machine has %s\n", level, infer_cpu_best());
    if (threads > thread_count_logical() && ++n)
        printf("slow       %d threads on %d hardware threads wait for each other\n", threads,
               thread_count_logical());
    else if (threads > cores && ++n)
        printf("slow       %d threads on %d cores: two on a core share its arithmetic\n", threads,
               cores);
    else if (threads < cores && ++n)
        printf("slow       %d threads of %d cores\n", threads, cores);
    FILE *f = fopen("/sys/kernel/mm/transparent_hugepage/enabled", "r");
    while (f && fscanf(f, "%63s", word) == 1)
        if (!strcmp(word, "[never]") && ++n)
            printf("slow       huge pages are off (transparent_hugepage is never)\n");
    if (f) fclose(f);
    read_word(word, "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
    read_word(driver, "/sys/devices/system/cpu/cpu0/cpufreq/scaling_driver");
    // The pstate drivers' powersave goes up to full speed, that of others stays at the lowest.
    if (!strcmp(word, "powersave") && !strstr(driver, "pstate") && ++n)
        printf("slow       the processor's frequency is kept low (governor %s)\n", word);
    if (getloadavg(&load, 1) == 1 && load >= 1 && ++n)
        printf("slow       other programs are at work (load %.1f)\n", load);
    return n;
}

/* ---- a model --------------------------------------------------------------------------------- */

typedef struct kernel_row {
    const char *type;
    int n;
    uint64_t bytes;
} kernel_row;

// Matrices only: vectors (norms, biases) take no kernel of their own.
static int sum_matrices(const infer_file *file, kernel_row *rows)
{
    int n = 0;
    for (int i = 0; i < infer_file_n_tensors(file); i++) {
        infer_tensor_info t = infer_file_tensor(file, i);
        int k = 0;
        if (t.n_dims < 2) continue;
        while (k < n && strcmp(rows[k].type, t.type))
            k++;
        if (k == MAX_TYPES) continue;
        if (k == n) rows[n++] = (kernel_row){ .type = t.type };
        rows[k].n++;
        rows[k].bytes += t.bytes;
    }
    return n;
}

static void print_kernels(const kernel_row *rows, int n, const char *level)
{
    char size[32];
    printf("\n%stype       matrices         size   kernel%s\n", cli_bold(stdout),
           cli_plain(stdout));
    for (int i = 0; i < n; i++) {
        const char *kernel = infer_kernel_name(level, rows[i].type);
        printf("%-10s %8d %12s   %s\n", rows[i].type, rows[i].n, cli_bytes(size, rows[i].bytes),
               kernel ? kernel : "none");
    }
}

static void print_tensors(const infer_file *file, const char *level)
{
    printf("\n%stype                shape   kernel                       tensor%s\n",
           cli_bold(stdout), cli_plain(stdout));
    for (int i = 0; i < infer_file_n_tensors(file); i++) {
        infer_tensor_info t = infer_file_tensor(file, i);
        char shape[64];
        int n = 0;
        if (t.n_dims < 2) continue;
        for (int d = 0; d < t.n_dims && n < (int)sizeof shape - 24; d++)
            n += snprintf(shape + n, sizeof shape - (size_t)n, "%s%lld", d ? " x " : "",
                          (long long)t.dims[d]);
        const char *kernel = infer_kernel_name(level, t.type);
        printf("%-8s %16s   %-28s ", t.type, shape, kernel ? kernel : "none");
        cli_put_text(stdout, t.name, strlen(t.name), 0);
        putchar('\n');
    }
}

// What of the model is slow here. Returns the number of lines.
static int warn_of_model(const infer_model_info *m, const kernel_row *rows, int n,
                         const char *level, uint64_t kv_bytes)
{
    char a[32], b[32], c[32];
    int warnings = 0;
    for (int i = 0; i < n; i++) {
        const char *kernel = infer_kernel_name(level, rows[i].type);
        double share = 100.0 * (double)rows[i].bytes / (double)m->weight_bytes;
        bool own = kernel && !strstr(kernel, "plain unpack") && !strstr(kernel, " ref");
        if (!own && ++warnings)
            printf("slow       %s has no kernel of its own on %s (%.0f %% of the weights)\n",
                   rows[i].type, level, share);
        else if (!strcmp(rows[i].type, "f32") && share >= 10 && ++warnings)
            printf("slow       f32 takes 4 bytes a weight (%.0f %% of the weights): 'infer "
                   "quantize' makes it less\n",
                   share);
    }
    double available = memory_available();
    if (available > 0 && (double)m->weight_bytes > available && ++warnings)
        printf("slow       weights of %s, memory of %s: they will be read again and again\n",
               cli_bytes(a, m->weight_bytes), cli_bytes(b, (uint64_t)available));
    else if (available > 0 && (double)(m->weight_bytes + kv_bytes) > available && ++warnings)
        printf("slow       weights of %s and a KV cache of %s, memory of %s: not with the whole "
               "context\n",
               cli_bytes(a, m->weight_bytes), cli_bytes(c, kv_bytes),
               cli_bytes(b, (uint64_t)available));
    return warnings;
}

// The KV cache of a full context. Reserving it takes no memory yet.
static int cache_bytes(const infer_model *model, const doctor_options *o, infer_engine_info *e)
{
    infer_engine_options eo = cli_engine_options(&o->engine);
    infer_engine *engine;
    infer_error err = { 0 };
    eo.max_sequences = 1;
    if (infer_engine_new(&engine, model, &eo, &err)) return cli_fail(&err);
    *e = infer_engine_describe(engine);
    infer_engine_free(engine);
    return EXIT_DONE;
}

static int print_model(const infer_model *model, const infer_file *file, const doctor_options *o,
                       const char *level)
{
    infer_model_info m = infer_model_describe(model);
    infer_engine_info e;
    kernel_row rows[MAX_TYPES];
    char a[32], b[32];
    int n = sum_matrices(file, rows), code = cache_bytes(model, o, &e);
    if (code) return code;
    printf("\nmodel      %s, ", m.arch);
    cli_put_text(stdout, m.path, strlen(m.path), 0);
    printf("\nneeds      %s of weights, %s of KV cache for a context of %d\n",
           cli_bytes(a, m.weight_bytes), cli_bytes(b, e.kv_bytes), e.n_ctx);
    print_kernels(rows, n, level);
    if (o->tensors) print_tensors(file, level);
    putchar('\n');
    if (!(warn_of_machine(o, level) + warn_of_model(&m, rows, n, level, e.kv_bytes)))
        puts("nothing slows this model down here");
    return EXIT_DONE;
}

static int run(int argc, char **argv)
{
    doctor_options o = { 0 };
    cli_args args;
    int code;
    if (!cli_parse(&cmd_doctor, &o, &args, argc, argv, &code)) return code;
    if (o.tensors && !args.n) return cli_usage(&cmd_doctor, "--tensors: needs a MODEL");
    if ((code = cli_engine_check(&cmd_doctor, &o.engine))) return code;
    const char *level = o.engine.cpu ? o.engine.cpu : infer_cpu_best();
    infer_model *model = NULL;
    if (args.n && (code = cli_model_open(&model, args.v[0], &o.engine))) return code;
    print_machine(&o, level);
    if (!model) warn_of_machine(&o, level);
    if (model) {
        infer_file *file;
        infer_error err = { 0 };
        if (infer_file_open(&file, infer_model_describe(model).path, &err))
            code = cli_fail(&err);
        else
            code = print_model(model, file, &o, level);
        if (!code) infer_file_close(file);
    }
    cli_model_close(model, &o.engine);
    return code;
}

const cli_command cmd_doctor = {
    .name = "doctor",
    .args = "[MODEL]",
    .min_args = 0,
    .max_args = 1,
    .summary = "what this machine offers and what slows a model down",
    .options = options,
    .run = run,
};
