/*
 * fuzz_jinja.c: any bytes as a chat template, rendered with a small conversation within small bounds.
 * What comes out is valid UTF-8 with its provenance in order.
 */
#include <stdlib.h>

#include "base/utf8.h"
#include "models/jinja.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char context[] =
    "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi <b> \\u00e9\\u4f60 ß\",\"n\":1.5},{\"role\":\"tool\","
    "\"content\":[{\"type\":\"text\",\"text\":\"x\\ny\"}]}],\"s\":\"Hello World\",\"n\":7,\"l\":[3,\"a\",null,[]],"
    "\"d\":{\"a\":1,\"b\":{\"c\":[true]}},\"bos_token\":\"<s>\",\"tools\":null}";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    jinja_template *t;
    jinja_text out;
    infer_error err;
    struct tm now = { .tm_year = 126, .tm_mon = 6, .tm_mday = 26 };
    jinja_options o = { .max_steps = 20000, .max_memory = 1 << 20, .max_output = 1 << 16, .now = &now };
    if (jinja_compile(&t, size ? (const char *)data : "", size, &err)) {
        if (!err.code || !err.msg[0] || t) abort();
        return 0;
    }
    json_t *j = json_loads(context, 0, NULL);
    if (!j) abort();
    if (!jinja_render(t, &out, j, &o, &err)) {
        if (!utf8_valid(out.s, out.n) || out.s[out.n]) abort();
        size_t at = 0;
        for (size_t i = 0; i < out.n_foreign; i++) {
            if (out.foreign[i].begin < at || out.foreign[i].end <= out.foreign[i].begin) abort();
            at = out.foreign[i].end + 1;
        }
        if (out.n_foreign && at > out.n + 1) abort();
    } else if (!err.msg[0] || out.s) {
        abort();
    }
    jinja_text_free(&out);
    jinja_free(t);
    json_decref(j);
    return 0;
}
