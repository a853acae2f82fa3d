/*
 * cmd_chat.c: `infer chat`: a conversation. On a terminal lines are edited and answers stream; else
 * each line of standard input is a message, and standard output holds the answers alone.
 *
 * What cannot be answered (a conversation too long, a template that refuses) is told and taken
 * back: the conversation is then as before the message. An answer that is stopped is kept as far as
 * it came.
 */
#include <errno.h>
#include <float.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "cli/cli.h"
#include "cli/conversation.h"
#include "cli/line.h"

#define CHAT_BUNDLE "smollm2"

typedef struct chat_options {
    cli_session s;
    const char *system, *given;
} chat_options;

static const cli_option options[] = {
    { "--system", "TEXT", OPT_TEXT, offsetof(chat_options, system),
      .help = "a system message that begins the conversation" },
    { "--chat-template", "TEXT|FILE", OPT_TEXT, offsetof(chat_options, given),
      .help = "use this template in place of the model's" },
    { "-n", "N", OPT_INT, offsetof(chat_options, s.n), .min = -1, .max = INT_MAX,
      .help = "most tokens of an answer (default: -1, until its end or a full context)" },
    SESSION_OPTIONS("0.7", "0: off (default: 0.05)",
                    "speed and memory, on standard error after each answer"),
    { "--engine", "NAME", OPT_LATER, 0, .help = "" },
    { "--gpu-layers", "N", OPT_LATER, 0, .help = "" },
    { 0 },
};

typedef struct chat {
    const chat_options *o;
    infer_session *session;
    infer_template *t;
    conversation talk;
    line_editor *editor; // NULL: not on a terminal
    infer_stats last;    // of the last answer alone
    char *answer;
    size_t n_answer, cap_answer;
    bool failed;    // a message was not answered
    bool stopped;   // the last answer was
    int interrupts; // Ctrl-C in a row: the second one ends the program
} chat;

enum { GO_ON = -1 }; // in place of an exit code

// What is said about the conversation: not among the answers.
static FILE *notes(const chat *c) { return c->editor ? stdout : stderr; }

static int refuse(chat *c, const char *message)
{
    c->failed = true;
    cli_error(EXIT_FAILED, "%s", message);
    return GO_ON;
}

/* ---- an answer ------------------------------------------------------------------------------- */

// A model's text may hold what terminals take for commands.
static void put_answer(const chat *c, const char *s)
{
    for (; *s; s++) {
        bool control = ((unsigned char)*s < ' ' && *s != '\n' && *s != '\t') || *s == 127;
        if (c->editor && control)
            fputs("\xef\xbf\xbd", stdout);
        else
            putchar(*s);
    }
}

static infer_status keep_piece(chat *c, const char *piece, infer_error *err)
{
    size_t n = strlen(piece);
    if (mem_reserve((void **)&c->answer, &c->cap_answer, c->n_answer + n + 1, 1, err))
        return err->code;
    memcpy(c->answer + c->n_answer, piece, n + 1);
    c->n_answer += n;
    return INFER_OK;
}

// Feeds the conversation and streams the answer; it is in c->answer, on failure as far as it came.
static infer_status stream_answer(chat *c, infer_error *err)
{
    c->n_answer = 0;
    if (keep_piece(c, "", err)) return err->code;
    infer_status st = infer_session_chat(c->session, c->talk.v, c->talk.n, c->t, err);
    cli_progress_end();
    if (st) return st;
    const char *piece;
    while ((piece = infer_session_next(c->session, err))) {
        put_answer(c, piece);
        if (cli_flush(EXIT_DONE)) return error_set(err, INFER_IO, "standard output");
        if (keep_piece(c, piece, err)) return err->code;
    }
    return err->code;
}

static infer_stats since(infer_stats now, const infer_stats *before)
{
    now.n_prompt -= before->n_prompt;
    now.n_generated -= before->n_generated;
    now.prompt_s -= before->prompt_s;
    now.generate_s -= before->generate_s;
    now.n_drafted -= before->n_drafted;
    now.n_accepted -= before->n_accepted;
    return now;
}

static void show_stats(const chat *c, FILE *f)
{
    infer_engine_info info = infer_engine_describe(infer_session_engine(c->session));
    cli_print_stats(f, &c->last, &info, c->o->s.sampling.temperature);
    fprintf(f, "context     %d of %d tokens, %zu messages\n",
            infer_sequence_length(infer_session_sequence(c->session)), info.n_ctx, c->talk.n);
}

// What an answer that did not end by itself is told to have been ended by.
static void tell_end(const chat *c)
{
    int n_ctx = infer_engine_describe(infer_session_engine(c->session)).n_ctx;
    bool full = infer_sequence_length(infer_session_sequence(c->session)) + 1 >= n_ctx;
    if (c->last.finish != INFER_FINISH_LENGTH) return;
    if (full)
        cli_warn("the answer ends here because the context of %d tokens is full: /clear begins a "
                 "new conversation, --ctx makes room for more",
                 n_ctx);
    else if (c->editor)
        printf("[ended after %d tokens, see -n]\n", c->last.n_generated);
}

// The message's answer; where there is none, the message is taken back. Returns an exit code or
// GO_ON.
static int converse(chat *c, const char *text)
{
    infer_error err = { 0 };
    // Room for the answer too: once made, it is kept.
    if (conversation_reserve(&c->talk, 2, &err) || conversation_add(&c->talk, "user", text, &err))
        return cli_fail(&err);
    infer_stats before = infer_session_stats(c->session);
    cli_interrupt_session(c->session);
    infer_status st = stream_answer(c, &err);
    cli_interrupt_session(NULL);
    c->stopped = cli_interrupted();
    cli_interrupt_over();
    if (st == INFER_CANCELLED) st = INFER_OK;
    if (c->n_answer || (!st && !c->stopped)) putchar('\n');
    if (c->stopped && c->editor) puts("[stopped, Ctrl-C once more ends]");
    c->interrupts = c->stopped;
    if (cli_flush(EXIT_DONE)) return EXIT_FAILED;
    if (!st && (c->n_answer || !c->stopped)) {
        c->last = since(infer_session_stats(c->session), &before);
        st = conversation_add(&c->talk, "assistant", c->answer, &err);
        if (!st && !c->stopped) tell_end(c);
        if (!st && c->o->s.stats) show_stats(c, stderr);
    }
    if (c->talk.n && !strcmp(c->talk.v[c->talk.n - 1].role, "user")) conversation_drop(&c->talk);
    if (!st && c->editor) putchar('\n');
    if (!st) return GO_ON;
    if (st != INFER_LIMIT) return refuse(c, err.msg);
    char more[sizeof err.msg + 100];
    snprintf(more, sizeof more, "%s: /clear begins a new conversation, --ctx makes room for more",
             err.msg);
    return refuse(c, more);
}

/* ---- commands -------------------------------------------------------------------------------- */

typedef struct chat_command {
    const char *name, *arg, *help;
    int (*run)(chat *c, const char *arg);
} chat_command;

static int cmd_help(chat *c, const char *arg);

static int cmd_system(chat *c, const char *arg)
{
    infer_error err = { 0 };
    const char *now = conversation_system(&c->talk);
    if (!*arg) {
        fprintf(notes(c), "%s\n", now ? now : "no system message");
    } else if (!strcmp(arg, "-")) {
        conversation_clear(&c->talk, true);
    } else if (conversation_add(&c->talk, "system", arg, &err)) {
        return cli_fail(&err);
    }
    return GO_ON;
}

// "~/x" is the shell's; here nobody else would replace it.
static char *file_name(const char *arg)
{
    const char *home = getenv("HOME");
    if (strncmp(arg, "~/", 2) || !home) return mem_strdup(arg);
    size_t n = strlen(home) + strlen(arg);
    char *path = mem_alloc(n, 1);
    if (path) snprintf(path, n, "%s%s", home, arg + 1);
    return path;
}

static int with_file(chat *c, const char *arg, bool save)
{
    infer_error err = { 0 };
    if (!*arg) return refuse(c, save ? "/save: expected a file" : "/load: expected a file");
    char *path = file_name(arg);
    infer_status st = !path  ? error_set(&err, INFER_NOMEM, "out of memory")
                      : save ? conversation_save(&c->talk, path, &err)
                             : conversation_load(&c->talk, path, &err);
    mem_free(path);
    if (st) return refuse(c, err.msg);
    fprintf(notes(c), "%zu message%s %s %s\n", c->talk.n, c->talk.n == 1 ? "" : "s",
            save ? "written to" : "from", arg);
    return GO_ON;
}

static int cmd_save(chat *c, const char *arg) { return with_file(c, arg, true); }
static int cmd_load(chat *c, const char *arg) { return with_file(c, arg, false); }

static int cmd_clear(chat *c, const char *arg)
{
    (void)arg;
    conversation_clear(&c->talk, false);
    infer_session_clear(c->session);
    if (c->editor) puts("a new conversation");
    return GO_ON;
}

static int say_stats(chat *c, const char *arg)
{
    (void)arg;
    show_stats(c, notes(c));
    return GO_ON;
}

static int cmd_exit(chat *c, const char *arg)
{
    (void)c, (void)arg;
    return EXIT_DONE;
}

static const chat_command commands[] = {
    { "/help", "", "this list", cmd_help },
    { "/system", "TEXT", "set the system message; without TEXT show it, '-' removes it",
      cmd_system },
    { "/save", "FILE", "write the conversation as JSON", cmd_save },
    { "/load", "FILE", "go on with a saved one", cmd_load },
    { "/clear", "", "a new conversation; the system message stays", cmd_clear },
    { "/stats", "", "speed of the last answer, memory, room in the context", say_stats },
    { "/exit", "", "end (also Ctrl-D)", cmd_exit },
};
static const char *const command_names[] = { "/help",  "/system ", "/save ", "/load ",
                                             "/clear", "/stats",   "/exit",  NULL };

static int cmd_help(chat *c, const char *arg)
{
    FILE *f = notes(c);
    (void)arg;
    for (int i = 0; i < COUNT_OF(commands); i++) {
        int n = fprintf(f, "  %s %s", commands[i].name, commands[i].arg);
        fprintf(f, "%*s%s\n", 16 - n, "", commands[i].help);
    }
    fputs("A line that ends with \\ goes on in the next. // begins a message with one /.\n"
          "Ctrl-C stops an answer.\n",
          f);
    return GO_ON;
}

static int run_command(chat *c, const char *line)
{
    size_t n = strcspn(line, " \t");
    const char *arg = line + n + strspn(line + n, " \t");
    for (int i = 0; i < COUNT_OF(commands); i++)
        if (strlen(commands[i].name) == n && !memcmp(commands[i].name, line, n)) {
            if (*arg && !*commands[i].arg) break;
            int code = commands[i].run(c, arg);
            return cli_flush(EXIT_DONE) ? EXIT_FAILED : code;
        }
    char message[160];
    snprintf(message, sizeof message, "'%.60s' is not a command: /help lists them", line);
    return refuse(c, message);
}

/* ---- input ----------------------------------------------------------------------------------- */

// One line without its newline, the caller's (mem_free); NULL at the end, with *code set.
static char *read_line(chat *c, bool more, int *code)
{
    char *text, *line = NULL;
    size_t cap = 0;
    *code = EXIT_DONE;
    while (c->editor) {
        switch (line_read(c->editor, more ? "… " : "> ", &text)) {
        case LINE_TEXT: c->interrupts = 0; return text;
        case LINE_CLOSED: return NULL;
        case LINE_NO_MEMORY: *code = cli_error(EXIT_FAILED, "chat: out of memory"); return NULL;
        case LINE_INTERRUPTED:
            c->interrupts = 0;
            *code = GO_ON;
            return NULL;
        case LINE_INTERRUPTED_EMPTY:
            if (more) {
                *code = GO_ON;
                return NULL;
            }
            if (c->interrupts++) {
                *code = EXIT_INTERRUPTED;
                return NULL;
            }
            puts("Ctrl-C once more or Ctrl-D ends, /help lists the commands");
        }
    }
    errno = 0;
    ssize_t n = getline(&line, &cap, stdin);
    if (n < 0 && ferror(stdin))
        *code = cli_error(EXIT_FAILED, "standard input: %s", strerror(errno));
    while (n > 0 && (line[n - 1] == '\n' || line[n - 1] == '\r'))
        line[--n] = 0;
    // A NUL would hide the rest of the line: it is refused as no text.
    text = n < 0 ? NULL : strlen(line) < (size_t)n ? mem_strdup("\xff") : mem_strdup(line);
    free(line);
    return text;
}

// A message, its lines joined where they end with a backslash. NULL: *code is GO_ON or the end's.
static char *read_message(chat *c, int *code)
{
    infer_error err = { 0 };
    char *all = NULL;
    size_t n = 0, cap = 0;
    for (bool more = false;; more = true) {
        char *line = read_line(c, more, code);
        if (!line) {
            if (more && !*code && !c->editor) return all; // the end of input ends the message too
            mem_free(all);
            return NULL;
        }
        size_t k = strlen(line);
        if (c->editor) line_remember(c->editor, line);
        if (mem_reserve((void **)&all, &cap, n + k + 2, 1, &err)) {
            *code = cli_fail(&err);
            mem_free(line);
            mem_free(all);
            return NULL;
        }
        memcpy(all + n, line, k + 1);
        mem_free(line);
        n += k;
        if (!k || all[n - 1] != '\\') return all;
        all[n - 1] = '\n';
    }
}

static int serve(chat *c, const char *text)
{
    if (!text[strspn(text, " \t\n")]) return GO_ON;
    if (!utf8_valid(text, strlen(text))) return refuse(c, "chat: the message is not valid UTF-8");
    if (text[0] == '/' && text[1] != '/') return run_command(c, text);
    return converse(c, text + (text[0] == '/'));
}

static int talk(chat *c)
{
    int code = GO_ON;
    while (code == GO_ON) {
        char *text = read_message(c, &code);
        if (text) code = serve(c, text);
        mem_free(text);
    }
    if (code || c->editor) return code;
    if (c->stopped) return EXIT_INTERRUPTED;
    return c->failed ? EXIT_FAILED : EXIT_DONE;
}

/* ---- the command ----------------------------------------------------------------------------- */

static void show_progress(int done, int n, void *user)
{
    (void)user;
    if (n > 512) cli_progress("%d of %d tokens read", done, n);
}

static void greet(const infer_model *model, const chat *c)
{
    infer_model_info m = infer_model_describe(model);
    fputs(cli_bold(stdout), stdout);
    cli_put_text(stdout, m.name, strlen(m.name), 60);
    printf("%s, %s, context of %d tokens\n/help lists the commands, Ctrl-D ends\n\n",
           cli_plain(stdout), m.quant,
           infer_engine_describe(infer_session_engine(c->session)).n_ctx);
}

static int open_editor(chat *c)
{
    if (!isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO)) return EXIT_DONE;
    arena a = { 0 };
    c->editor = line_new(cli_home(&a, "chat_history"), command_names);
    arena_free(&a);
    return c->editor ? EXIT_DONE : cli_error(EXIT_FAILED, "chat: the terminal cannot be set up");
}

static int hold(const infer_model *model, const char *name, const chat_options *o)
{
    const infer_tokenizer *tok = cli_tokenizer(model, name);
    if (!tok) return EXIT_FAILED;
    chat c = { .o = o };
    infer_error err = { 0 };
    infer_session_options so = cli_session_options(&o->s);
    so.progress = show_progress;
    int code = cli_template_open(&c.t, tok, o->given, name);
    if (!code && infer_session_new(&c.session, model, &so, &err)) code = cli_fail(&err);
    if (!code && o->system && conversation_add(&c.talk, "system", o->system, &err))
        code = cli_fail(&err);
    if (!code) code = open_editor(&c);
    if (!code && c.editor) greet(model, &c);
    if (!code) code = talk(&c);
    line_free(c.editor);
    conversation_free(&c.talk);
    mem_free(c.answer);
    infer_session_free(c.session);
    infer_template_free(c.t);
    return code;
}

// `default` is here a model that was trained to converse.
static int open_model(infer_model **model, const char *name, cli_engine *e)
{
    if (strcmp(name, "default")) return cli_model_open(model, name, e);
    arena a = { 0 };
    int code = EXIT_FAILED;
    const char *folder = cli_home(&a, "models");
    char *path =
        folder ? arena_printf(&a, "%s/%s", folder, cli_bundle_find(CHAT_BUNDLE)->file) : NULL;
    if (!path)
        cli_error(EXIT_FAILED, "default: out of memory");
    else if (!file_exists(path))
        cli_error(EXIT_FAILED,
                  "default: %s is missing: 'infer pull " CHAT_BUNDLE
                  "' or scripts/fetch_model.sh " CHAT_BUNDLE " fetches it",
                  path);
    else
        code = cli_model_open(model, path, e);
    arena_free(&a);
    return code;
}

static int run(int argc, char **argv)
{
    const infer_sampling usual = {
        .temperature = 0.7f, .top_p = 1, .min_p = 0.05f, .repeat_penalty = 1, .repeat_window = 64
    };
    chat_options o = { .s = { .n = -1, .sampling = usual } };
    cli_args args;
    int code;
    if (!cli_parse(&cmd_chat, &o, &args, argc, argv, &code)) return code;
    if (!o.s.n) return cli_usage(&cmd_chat, "-n: expected -1 or at least 1, found '0'");
    if (o.system && !utf8_valid(o.system, strlen(o.system)))
        return cli_usage(&cmd_chat, "--system: not valid UTF-8");
    if ((code = cli_session_check(&cmd_chat, &o.s, &usual))) return code;
    infer_model *model;
    if ((code = open_model(&model, args.v[0], &o.s.engine))) return code;
    code = hold(model, args.v[0], &o);
    cli_model_close(model, &o.s.engine);
    return code;
}

const cli_command cmd_chat = {
    .name = "chat",
    .args = "MODEL",
    .min_args = 1,
    .max_args = 1,
    .summary = "a conversation with the model's own chat template",
    .text =
        "MODEL 'default' is here SmolLM2 135M Instruct. On a terminal lines can be edited and "
        "Ctrl-C stops an answer; /help lists what else can be typed. Elsewhere each line of "
        "standard input is a message or a command, and standard output holds the answers alone.",
    .options = options,
    .run = run,
};
