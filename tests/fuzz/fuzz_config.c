/* fuzz_config.c: any bytes as config.json, read for every family; what is accepted must make sense.
 */
#include <math.h>

#include "models/arch.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    json_error_t why;
    json_t *json = json_loadb((const char *)data, size, JSON_REJECT_DUPLICATES, &why);
    const json_t *text = json_object_get(json, "text_config");
    for (int i = 0; json_is_object(json) && archs[i]; i++) {
        arena mem = { 0 };
        config_source s = { .path = "config.json",
                            .json = json_is_object(text) ? text : json,
                            .outer = json,
                            .mem = &mem };
        config c;
        config_init(&c, archs[i], false);
        config_read(&s, &c);
        if (archs[i]->read_config) archs[i]->read_config(&s, &c);
        config_check(&s, &c);
        rope_plan p;
        infer_error err;
        if (s.faults.n == 0) {
            if (c.n_layers < 1 || c.n_layers > MAX_LAYERS || c.n_heads % c.n_kv_heads ||
                c.head_dim < 1 || !(c.norm_eps > 0))
                __builtin_trap();
            if (rope_build(&p, &c.rope, ROPE_HALVES, c.n_ctx, &mem, &err) == INFER_OK)
                for (int k = 0; k < p.n_pairs; k++)
                    if (!isfinite(p.inv_freq[k])) __builtin_trap();
        }
        arena_free(&mem);
    }
    json_decref(json);
    return 0;
}
