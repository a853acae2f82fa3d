/*
 * fuzz_tokenizer.c: any bytes as a tokenizer.json; what loads encodes a fixed text, decodes it and
 * some ids of its own, whole and streamed.
 */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "models/tok.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char sample[] = "Hello  <s>w\xC3\xB6rld</s> \t\n\n 1234 \xF0\x9F\x98\x80\xE4\xB8\xAD "
                             "don't \xE2\x96\x81x e\xCC\x81 a\0b.";

static void decode(const tokenizer *t, const int32_t *ids, size_t n)
{
    char *s;
    size_t len, at = 0, k;
    tok_stream *st;
    if (tok_decode(t, &s, &len, ids, n, false, NULL)) return;
    if (!utf8_valid(s, len)) abort();
    if (tok_stream_new(&st, t, false, NULL) == INFER_OK) {
        for (size_t i = 0; i <= n; i++) {
            const char *p = i < n ? tok_stream_push(st, ids[i], &k) : tok_stream_flush(st, &k);
            if (at + k > len || memcmp(s + at, p, k)) abort();
            at += k;
        }
        if (at != len) abort();
        tok_stream_free(st);
    }
    mem_free(s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    tokenizer *t;
    infer_error err;
    int32_t *ids, own[24];
    size_t n;
    if (tok_load_json_text(&t, size ? (const char *)data : "", size, &err)) {
        if (err.code == INFER_OK || !err.msg[0]) abort();
        return 0;
    }
    if (tok_encode(t, &ids, &n, sample, sizeof sample - 1, NULL, &err) == INFER_OK) {
        decode(t, ids, n);
        mem_free(ids);
    }
    for (int i = 0; i < 24; i++)
        own[i] = tok_n_vocab(t) ? (i * 7919) % tok_n_vocab(t) : 0;
    decode(t, own, 24);
    tokenizer_free(t);
    return 0;
}
