/* SPDX-License-Identifier: Apache-2.0 */
/* The rules by which byte-level BPE cuts a text into words, and the names that files give them in
 * `tokenizer.ggml.pre`. A rule is one to six regular expressions, a stage each; tok_pre.c runs
 * them.
 *
 * They are those of the models' own tokenizers (tokenizer.json). `\s` is written out as Unicode's
 * White_Space, since PCRE2's own adds U+180E. Where llama.cpp takes a simpler expression, because
 * its engine lacks classes of capital letters or `\b`, the model's own stands here. */

#include <string.h>

#include "engine/text/tok_impl.h"

#define SPACES                                                                                     \
    "\\t\\n\\x0b\\f\\r "                                                                           \
    "\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}"               \
    "\\x{3000}"
#define SPACE "[" SPACES "]"
#define NO_SPACE "[^" SPACES "]"
#define ENDINGS "'s|'t|'re|'ve|'m|'ll|'d"
#define ANY_CASE "(?i:" ENDINGS ")"
/* White space before a word is left to the word; the last of it goes with what follows. */
#define LAST_SPACES SPACE "+(?!" NO_SPACE ")|" SPACE "+"
#define LINES SPACE "*[\\r\\n]+|"
#define BEFORE "[^\\r\\n\\p{L}\\p{N}]?" /* one character of no kind goes with the word after it */
#define SIGNS " ?[^" SPACES "\\p{L}\\p{N}]+"

#define GPT2 ENDINGS "| ?\\p{L}+| ?\\p{N}+|" SIGNS "|" LAST_SPACES
#define WORDS(digits) BEFORE "\\p{L}+|" digits "|" SIGNS "[\\r\\n]*|" LINES
#define LLAMA3(digits) ANY_CASE "|" WORDS(digits) LAST_SPACES

/* Words that begin with capitals, or are of capitals, apart: "HelloWORLDs" is three. */
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define CASED(upper, lower, tail)                                                                  \
    BEFORE upper "*" lower "+" tail "|" BEFORE upper "+" lower "*" tail "|"
#define O200K(digits, tail)                                                                        \
    CASED(UPPER, LOWER, tail) digits "|" SIGNS "[\\r\\n/]*|" LINES LAST_SPACES
/* The same without Han: what is in no other class either. */
#define UPPER_NO_HAN "[^\\p{Ll}\\p{N}\\p{P}\\p{S}\\p{Z}\\p{C}\\p{sc:Han}]"
#define LOWER_NO_HAN "[^\\p{Lu}\\p{Lt}\\p{N}\\p{P}\\p{S}\\p{Z}\\p{C}\\p{sc:Han}]"
#define KIMI                                                                                       \
    "\\p{sc:Han}+|" CASED(UPPER_NO_HAN, LOWER_NO_HAN, ANY_CASE "?") "\\p{N}{1,3}|" SIGNS           \
                                                                    "[\\r\\n]*|" LINES LAST_SPACES

#define ASCII_SIGNS "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~]"
#define DEEPSEEK3(signs_end)                                                                       \
    ASCII_SIGNS                                                                                    \
    "[A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+" signs_end LAST_SPACES
#define HAN_KANA "[\\x{4e00}-\\x{9fa5}\\x{3040}-\\x{30ff}]+"
#define DEEPSEEK_CJK "[\\x{800}-\\x{9fa5}\\x{ac00}-\\x{d7ff}]+"
/* Letters that have a case, in Unicode 10 or so; Georgian and mathematical ones are not among them.
 */
#define DEEPSEEK_LETTERS                                                                           \
    "A-Za-z\\x{b5}\\x{c0}-\\x{d6}\\x{d8}-\\x{f6}\\x{f8}-\\x{1ba}\\x{1bc}-\\x{1bf}"                 \
    "\\x{1c4}-\\x{293}\\x{295}-\\x{2af}\\x{370}-\\x{373}\\x{376}\\x{377}\\x{37b}-\\x{37d}"         \
    "\\x{37f}\\x{386}\\x{388}-\\x{38a}\\x{38c}\\x{38e}-\\x{3a1}\\x{3a3}-\\x{3f5}"                  \
    "\\x{3f7}-\\x{481}\\x{48a}-\\x{52f}\\x{531}-\\x{556}\\x{10a0}-\\x{10c5}"                       \
    "\\x{13a0}-\\x{13f5}\\x{13f8}-\\x{13fd}\\x{1c90}-\\x{1cba}\\x{1cbd}-\\x{1cbf}"                 \
    "\\x{1d00}-\\x{1d2b}\\x{1d6b}-\\x{1d77}\\x{1d79}-\\x{1d9a}\\x{1e00}-\\x{1f15}"                 \
    "\\x{1f18}-\\x{1f1d}\\x{1f20}-\\x{1f45}\\x{1f48}-\\x{1f4d}\\x{1f50}-\\x{1f57}"                 \
    "\\x{1f59}\\x{1f5b}\\x{1f5d}\\x{1f5f}-\\x{1f7d}\\x{1f80}-\\x{1fb4}\\x{1fb6}-\\x{1fbc}"         \
    "\\x{1fbe}\\x{1fc2}-\\x{1fc4}\\x{1fc6}-\\x{1fcc}\\x{1fd0}-\\x{1fd3}\\x{1fd6}-\\x{1fdb}"        \
    "\\x{1fe0}-\\x{1fec}\\x{1ff2}-\\x{1ff4}\\x{1ff6}-\\x{1ffc}\\x{2102}\\x{2107}"                  \
    "\\x{210a}-\\x{2113}\\x{2115}\\x{2119}-\\x{211d}\\x{2124}\\x{2126}\\x{2128}"                   \
    "\\x{212a}-\\x{212d}\\x{212f}-\\x{2134}\\x{2139}\\x{213c}-\\x{213f}\\x{2145}-\\x{2149}"        \
    "\\x{214e}\\x{2183}\\x{2184}\\x{2c00}-\\x{2c7b}\\x{2c7e}-\\x{2ce4}\\x{2ceb}-\\x{2cee}"         \
    "\\x{2cf2}\\x{2cf3}\\x{a640}-\\x{a66d}\\x{a680}-\\x{a69b}\\x{a722}-\\x{a76f}"                  \
    "\\x{a771}-\\x{a787}\\x{a78b}-\\x{a78e}\\x{ab70}-\\x{abbf}\\x{fb00}-\\x{fb06}"                 \
    "\\x{fb13}-\\x{fb17}\\x{ff21}-\\x{ff3a}\\x{ff41}-\\x{ff5a}\\x{10400}-\\x{1044f}"               \
    "\\x{104b0}-\\x{104d3}\\x{104d8}-\\x{104fb}\\x{10c80}-\\x{10cb2}\\x{10cc0}-\\x{10cf2}"         \
    "\\x{118a0}-\\x{118df}\\x{1e900}-\\x{1e943}"
#define AFMOE_SCRIPTS                                                                              \
    "[\\x{4e00}-\\x{9fff}\\x{3400}-\\x{4dbf}\\x{f900}-\\x{faff}\\x{3040}-\\x{30ff}"                \
    "\\x{ff65}-\\x{ff9f}\\x{2f00}-\\x{2fdf}\\x{e40}-\\x{eff}\\x{1780}-\\x{17ff}"                   \
    "\\x{1000}-\\x{109f}\\x{aa60}-\\x{aa7f}\\x{a9e0}-\\x{a9ff}\\x{ac00}-\\x{d7af}"                 \
    "\\x{1100}-\\x{11ff}]+"
#define YOUTU_SCRIPTS                                                                              \
    "[\\x{ac00}-\\x{d7a3}\\x{3131}-\\x{318e}]+|[\\x{ff01}\\x{2026}\\x{201c}\\x{201d}"              \
    "\\x{2018}\\x{2019}\\x{2014}\\x{ff1a}\\x{ff1b}\\x{ff0c}\\x{3001}-\\x{303f}"                    \
    "\\x{fe30}-\\x{fe4f}]+|[\\x{3105}-\\x{312f}]+|" HAN_KANA
#define BLOOM " ?[^(" SPACES "|.,!?\\x{2026}\\x{3002}\\x{ff0c}\\x{3001}\\x{964}\\x{6d4}\\x{60c})]+"
/* What `\\w` is to Oniguruma, which runs the models' expressions: beyond Latin-1 no numbers but Nd.
 */
#define WORD "[\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}]"
#define HALVES(n) SPACE "{" #n "}(?!" NO_SPACE ")|"

enum { IGNORE = TOK_PRE_IGNORE_MERGES, BOS = TOK_PRE_ADD_BOS };

static const struct tok_pre_rule rules[] = {
    {{"gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "granite-docling", "exaone4", "gigachat",
      "a.x-4.0", "mellum", "modern-bert", "jina-es", "jina-de", "jina-v1-en", "jina-v2-es",
      "jina-v2-de", "jina-v2-code", "roberta-bpe"},
     {GPT2},
     0},
    {{"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"},
     {"\\p{N}", GPT2},
     0},
    {{"llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2",
      "jina-v5-nano"},
     {LLAMA3("\\p{N}{1,3}")},
     IGNORE | BOS},
    {{"glm4", "glm5"}, {LLAMA3("\\p{N}{1,3}")}, IGNORE},
    {{"dbrx", "smaug-bpe", "chatglm-bpe"}, {LLAMA3("\\p{N}{1,3}")}, 0},
    {{"qwen2", "deepseek-r1-qwen", "stablelm2", "hunyuan", "solar-open", "megrez", "grok-2",
      "kormo", "f2llmv2"},
     {LLAMA3("\\p{N}")},
     0},
    {{"qwen35"},
     {ANY_CASE "|" BEFORE "[\\p{L}\\p{M}]+|\\p{N}| ?[^" SPACES
               "\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" LINES LAST_SPACES},
     0},
    {{"ufakzeka"}, {WORDS("\\p{N}") LAST_SPACES}, 0},
    {{"laguna"}, {"[^\\n]+|\\n+", LLAMA3("\\p{N}")}, 0},
    {{"minicpm5"}, {"\\p{N}{1,3}", LLAMA3("\\p{N}+")}, IGNORE},
    {{"seed-coder"},
     {ANY_CASE "|" BEFORE "\\p{L}+|\\p{N}| ?[^" SPACES "\\p{L}\\p{N}\\r\\n]+|" LINES LAST_SPACES},
     0},
    {{"bailingmoe", "bailingmoe2", "llada-moe"},
     {"'(?i:[sdmt]|ll|ve|re)|" BEFORE "\\p{L}+|\\p{N}|" SIGNS "[\\r\\n]*|" SPACE
      "*[\\r\\n]|" LAST_SPACES},
     0},
    {{"exaone-moe"},
     {ANY_CASE "|" BEFORE "(?:\\p{L}\\p{M}*+(?: \\p{L}\\p{M}*+)*+)++|\\p{N}|" SIGNS
               "[\\r\\n/]?|" SPACE "*[\\r\\n]|" LAST_SPACES},
     0},
    {{"jais-2"},
     {ANY_CASE "|" WORDS("\\p{N}{1,3}") HALVES(512) HALVES(256) HALVES(128) HALVES(64) HALVES(32)
          HALVES(16) HALVES(8) HALVES(4) SPACE "{1,2}(?!" NO_SPACE ")|" SPACE},
     0},
    {{"tekken"}, {O200K("\\p{N}", "")}, IGNORE | BOS},
    {{"gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"},
     {O200K("\\p{N}{1,3}", ANY_CASE "?")},
     0},
    {{"granite-embed-multi-97m"}, {O200K("\\p{N}{1,3}", ANY_CASE "?")}, IGNORE},
    {{"tiny_aya", "cohere2moe"},
     {TOK_PRE_THREES "(?<!\\p{Nd})\\p{Nd}++(?!" WORD ")", O200K("\\p{N}{1,3}", ANY_CASE "?")},
     0},
    {{"youtu"}, {YOUTU_SCRIPTS, O200K("\\p{N}", ANY_CASE "?")}, IGNORE},
    {{"kimi-k2"}, {KIMI}, 0},
    {{"afmoe"}, {TOK_PRE_THREES "\\p{Nd}+", AFMOE_SCRIPTS, DEEPSEEK3("[\\r\\n]*|" LINES)}, 0},
    {{"superbpe"}, {"\\p{N}+", TOK_PRE_BEFORE_THREES "\\p{Nd}+"}, 0},
    {{"deepseek-llm"},
     {"[\\r\\n]", SPACE "?[" DEEPSEEK_LETTERS "]+",
      SPACE "?[!-/:-~\\x{ff01}-\\x{ff0f}\\x{ff1a}-\\x{ff5e}\\x{2018}-\\x{201f}"
            "\\x{3000}-\\x{3002}]+",
      /* a run begins behind no space: tried from each of its spaces it would cost their square */
      "(?<!" SPACE ")" SPACE "+\\z", DEEPSEEK_CJK, "\\p{N}+"},
     0},
    {{"deepseek-coder"},
     {"[\\r\\n]", SPACE "?\\p{L}+", SPACE "?\\p{P}+", DEEPSEEK_CJK, "\\p{N}"},
     0},
    {{"deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"},
     {"\\p{N}{1,3}", HAN_KANA, DEEPSEEK3("[\\r\\n]*|" LINES)},
     0},
    {{"spark2_5"}, {"\\p{N}{1,3}", HAN_KANA, DEEPSEEK3("|[\\r\\n]|"), "\\p{N}"}, 0},
    {{"falcon"}, {"[\\p{P}\\$\\+<=>\\^~\\|`]+", GPT2, "[0-9][0-9][0-9]"}, 0},
    {{"bloom", "poro-chat", "gpt3-finnish"}, {BLOOM}, 0},
    {{"viking"}, {BLOOM, "\\p{N}"}, 0},
    {{"chameleon"},
     {"<sentinel:[0-9]+>", "IMGIMG[A-I]{1,4}Z", "[\\t\\n]|    |  ", "\\p{N}",
      "[\\p{P}!-/:-@\\[-`{-~]", GPT2},
     BOS},
    {{"default"}, {"[\\p{P}\\$\\+<=>\\^~\\|]+", GPT2, "\\p{N}+", "[0-9][0-9][0-9]"}, 0},
};

const struct tok_pre_rule *tok_pre_rule_find(const char *name, size_t len, const char **ret_name)
{
    for (size_t i = 0; i < sizeof(rules) / sizeof(rules[0]); i++) {
        for (const char *const *p = rules[i].names; *p; p++) {
            if (strlen(*p) == len && !memcmp(*p, name, len)) {
                *ret_name = *p;
                return &rules[i];
            }
        }
    }
    return NULL;
}
