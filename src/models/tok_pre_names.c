/*
 * tok_pre_names.c: what a GGUF file's tokenizer.ggml.pre means: the patterns of the model's
 * original tokenizer, in order, each cutting out its matches; whether the original composes
 * characters (NFC); whether a whole word in the vocabulary is taken before merges; and whether a
 * BOS comes first where the file does not say.
 */
#include "models/tok.h"

#define WORDS_GPT2                                                                                 \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define SHORT_FORMS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define LINES "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define SYMBOLS " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*"
#define WORD "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+"
#define CL100K SHORT_FORMS "|" WORD "|\\p{N}{1,3}|" SYMBOLS "|" LINES
#define QWEN2 SHORT_FORMS "|" WORD "|\\p{N}|" SYMBOLS "|" LINES
#define UPPER "\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}"
#define LOWER "\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}"
#define HEAD "[^\\r\\n\\p{L}\\p{N}]?"
#define O200K                                                                                      \
    HEAD "[" UPPER "]*[" LOWER "]+" SHORT_FORMS "?|" HEAD "[" UPPER "]+[" LOWER "]*" SHORT_FORMS   \
         "?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" LINES
#define BLOOM " ?[^(\\s|.,!?\\u2026\\u3002\\uff0c\\u3001\\u0964\\u06d4\\u060c)]+"
#define ASCII_PUNCT "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~]"
#define CASED "[\\p{Lu}\\p{Ll}\\p{Lt}]"
#define NOT_HAN "&&[^\\p{Han}]"

static const pre_name table[] = {
    { "gpt-2 gpt2 phi-2 jina-es jina-de jina-v1-en jina-v2-es jina-v2-de jina-v2-code gigachat "
      "a.x-4.0 "
      "mellum roberta-bpe jais trillion granite-docling exaone4",
      { WORDS_GPT2 },
      false,
      false,
      false },
    { "mpt olmo modern-bert gpt-neox", { WORDS_GPT2 }, true, false, false },
    { "default",
      { "[\\p{P}\\$\\+<=>\\^~\\|`]+", WORDS_GPT2, "\\p{N}+", "[0-9][0-9][0-9]" },
      false,
      false,
      false },
    { "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2",
      { CL100K },
      false,
      true,
      true },
    { "dbrx smaug-bpe glm4 chatglm-bpe jais2", { CL100K }, false, false, false },
    { "qwen2 megrez kormo", { QWEN2 }, true, false, false },
    { "deepseek-r1-qwen stablelm2 hunyuan grok-2 solar-open", { QWEN2 }, false, false, false },
    { "qwen35",
      { SHORT_FORMS "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| "
                    "?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" LINES },
      true,
      false,
      false },
    { "starcoder refact smollm codeshell exaone minerva-7b",
      { "\\p{N}", WORDS_GPT2 },
      false,
      false,
      false },
    { "command-r", { "\\p{N}", WORDS_GPT2 }, true, false, false },
    { "deepseek-llm",
      { "[\\r\\n]", "\\s?" CASED "+",
        "\\s?[!-/:-~\\uff01-\\uff0f\\uff1a-\\uff5e\\u2018-\\u201f\\u3000-"
        "\\u3002]+",
        "\\s+$", "[\\u4e00-\\u9fa5\\u0800-\\u4e00\\uac00-\\ud7ff]+|\\p{N}+" },
      false,
      false,
      false },
    { "deepseek-coder",
      { "[\\r\\n]", "\\s?\\p{L}+", "\\s?\\p{P}+",
        "[\\u4e00-\\u9fa5\\u0800-\\u4e00\\uac00-\\ud7ff]+", "\\p{N}" },
      false,
      false,
      false },
    { "deepseek-v3 hunyuan-dense",
      { "\\p{N}{1,3}", "[\\u4e00-\\u9fa5\\u3040-\\u309f\\u30a0-\\u30ff]+",
        ASCII_PUNCT
        "[A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*|" LINES },
      false,
      false,
      false },
    { "falcon",
      { "[\\p{P}\\$\\+<=>\\^~\\|`]+", WORDS_GPT2, "[0-9][0-9][0-9]" },
      false,
      false,
      false },
    { "bloom poro-chat gpt3-finnish", { BLOOM }, false, false, false },
    { "viking", { BLOOM, "\\p{N}" }, false, false, false },
    { "tekken",
      { HEAD "[" UPPER "]*[" LOWER "]+|" HEAD "[" UPPER "]+[" LOWER
             "]*|\\p{N}| ?[^\\s\\p{L}\\p{N}]+"
             "[\\r\\n/]*|" LINES },
      false,
      true,
      true },
    { "gpt-4o llama4 kanana2 minimax-m2", { O200K }, false, false, false },
    { "superbpe", { "\\p{N}+", "(?=(\\d{3})+(?!\\d))" }, false, false, false },
    { "bailingmoe bailingmoe2 llada-moe",
      { "'(?i:[sdmt]|ll|ve|re)|" WORD
        "|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]|\\s+(?!\\S)|"
        "\\s+" },
      false,
      false,
      false },
    { "seed-coder",
      { SHORT_FORMS "|" WORD "|\\p{N}| ?[^\\s\\p{L}\\p{N}\\r\\n]+|" LINES },
      false,
      false,
      false },
    { "kimi-k2",
      { "\\p{Han}+|" HEAD "[" UPPER NOT_HAN "]*[" LOWER NOT_HAN "]+" SHORT_FORMS "?|" HEAD
        "[" UPPER NOT_HAN "]+[" LOWER NOT_HAN "]*" SHORT_FORMS "?|\\p{N}{1,3}|" SYMBOLS "|" LINES },
      false,
      false,
      false },
    { "exaone-moe",
      { SHORT_FORMS "|" HEAD
                    "(?:\\p{L}\\p{M}*(?: \\p{L}\\p{M}*)*)+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]?|"
                    "\\s*[\\r\\n]|\\s+(?!\\S)|\\s+" },
      false,
      false,
      false },
};

const pre_name *pre_name_find(const char *s, size_t n)
{
    for (int i = 0; i < COUNT_OF(table); i++) {
        for (const char *p = table[i].names; *p;) {
            size_t k = strcspn(p, " ");
            if (k == n && !memcmp(p, s, n)) return &table[i];
            p += k + (p[k] == ' ');
        }
    }
    return NULL;
}

const pre_name *pre_name_match(const char *const *patterns, int n, bool nfc, bool ignore_merges)
{
    for (int i = 0; i < COUNT_OF(table); i++) {
        const pre_name *p = &table[i];
        bool same = p->nfc == nfc && p->ignore_merges == ignore_merges;
        int k = 0;
        for (; same && k < COUNT_OF(p->patterns) && p->patterns[k]; k++)
            same = k < n && !strcmp(p->patterns[k], patterns[k]);
        if (same && k == n) return p;
    }
    return NULL;
}
