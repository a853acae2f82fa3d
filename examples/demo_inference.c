/*
 * demo_inference.c: an answer, in ten lines: a model, a session, a prompt, and the pieces of text as they
 * come. cc demo_inference.c $(pkg-config --cflags --libs infer)
 */
#include <infer.h>
#include <stdio.h>

int main(int argc, char **argv)
{
    const char *path = argc > 1 ? argv[1] : "gemma-3-270m-q4_k_m.gguf";
    const char *prompt = argc > 2 ? argv[2] : "The capital of France is";
    infer_session_options options = { .max_tokens = 32 };
    infer_error err;
    infer_model *model = NULL;
    infer_session *session = NULL;

    if (infer_model_open(&model, path, NULL, &err) == INFER_OK &&
        infer_session_new(&session, model, &options, &err) == INFER_OK &&
        infer_session_prompt(session, prompt, &err) == INFER_OK) {
        for (const char *piece; (piece = infer_session_next(session, &err));) {
            fputs(piece, stdout);
            fflush(stdout);
        }
        putchar('\n');
    }
    infer_session_free(session);
    infer_model_close(model);
    if (err.code != INFER_OK) fprintf(stderr, "demo_inference: %s\n", err.msg);
    return err.code != INFER_OK;
}
