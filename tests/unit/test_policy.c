/* SPDX-License-Identifier: Apache-2.0 */
/* engine/kv/policy/policy.h: what may be said, what it means, where a fault is, and that the
 * canonical text says the same. */

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "engine/kv/policy/policy.h"
#include "engine/kv/policy/select.h"
#include "engine/kv/policy/word.h"
#include "proto/lane/record.h"

static struct policy parse(const char *text)
{
    struct policy p;
    struct error e = {0};

    cr_assert_eq(policy_parse(text, &p, &e), 0, "%s: %s", text, e.text);
    return p;
}

static const char *place_word(const struct policy *p)
{
    return policy_word_of(p, AXIS_PLACE)->name;
}

Test(policy, empty_is_full_f16)
{
    const char *texts[] = {NULL, "", "full", "f16", "f16+full", "full+f16"};

    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        struct policy p = parse(texts[i]);

        cr_assert_str_eq(place_word(&p), "full");
        cr_assert_eq(p.k_type, OPS_KV_F16);
        cr_assert_eq(p.v_type, OPS_KV_F16);
        cr_assert_eq(p.chunk, 512);
        cr_assert_eq(policy_budget(&p, 1000, 8192), 0);
    }
}

Test(policy, observe_hangs_on_the_word)
{
    struct policy p = parse("recency:300");

    cr_assert_eq(p.observe, 256);
    cr_assert_float_eq(p.decay, 0.99f, 1e-7f);
    p = parse("h2o:50%");
    cr_assert_eq(p.observe, 64);
    p = parse("recency:300,observe=64");
    cr_assert_eq(p.observe, 64);
}

Test(policy, words)
{
    struct policy p = parse("kv8+sinks:4+window:1020");

    cr_assert_eq(p.k_type, OPS_KV_I8);
    cr_assert_eq(p.v_type, OPS_KV_FP8);
    cr_assert_str_eq(place_word(&p), "window");
    cr_assert_eq(p.sinks, 4);
    cr_assert_eq(policy_budget(&p, 9999, 8192), 1024);
    cr_assert_eq(policy_budget(&p, 9999, 1000), 1000, "never more than the context");

    p = parse("q4_0+h2o:50%");
    cr_assert_eq(p.k_type, OPS_KV_Q4_0);
    cr_assert_eq(p.v_type, OPS_KV_Q4_0);

    p = parse("keyformer:512,recent=25%,tau=1..3.5,mode=paper,noise=fresh,score=head,pos=org,"
              "prefill=dense,observe=32,seed=7,damp=0.9,min=64,chunk=128");
    cr_assert_str_eq(place_word(&p), "keyformer");
    cr_assert_eq(p.recent, 25);
    cr_assert_float_eq(p.tau1, 3.5f, 1e-6);
    cr_assert_eq(p.noise, POLICY_FRESH);
    cr_assert_eq(p.observe, 32);
    cr_assert_eq(p.seed, 7);
    cr_assert_float_eq(p.damp, 0.9f, 1e-6);
    cr_assert_eq(p.chunk, 128);
    cr_assert_eq(parse("keyformer:512,tau=2").tau1, 2.0f);
    cr_assert_eq(parse("keyformer:512").noise, POLICY_NO_NOISE);
    cr_assert_eq(parse("keyformer:512,mode=as-shipped").noise, POLICY_FRESH);
    cr_assert_eq(parse("keyformer:512,recent=0%").recent, 0);
}

Test(policy, budgets)
{
    struct policy p = parse("h2o:50%");

    cr_assert_eq(policy_budget(&p, 1000, 8192), 500);
    cr_assert_eq(policy_budget(&p, 100, 8192), 128, "at least min");
    p = parse("h2o:50%,min=16");
    cr_assert_eq(policy_budget(&p, 100, 8192), 50);
    p = parse("h2o:25%ctx");
    cr_assert_eq(policy_budget(&p, 100, 8192), 2048);
}

Test(policy, centers_where_keys_are_small)
{
    struct policy p = parse("fp8");
    char text[KV_TEXT_MAX];

    cr_assert(policy_centers(&p));
    policy_print(&p, text, sizeof(text));
    cr_assert_str_eq(text, "fp8,center=auto+full,chunk=512");
    p = parse("kv8,center=auto+h2o:64");
    cr_assert(policy_centers(&p));
    p = parse("kv8,center=off+h2o:64");
    cr_assert_not(policy_centers(&p));
    p = parse("q4_0");
    cr_assert(policy_centers(&p));
    p = parse("fp8+h2o:64,pos=new"); /* a constant is turned by another angle for every slot */
    cr_assert_not(policy_centers(&p));
    p = parse("k16v8");
    cr_assert_not(policy_centers(&p));
    policy_print(&p, text, sizeof(text));
    cr_assert_str_eq(text, "k16v8+full,chunk=512");
}

Test(policy, rotates_integers)
{
    struct policy p = parse("kv8");
    char text[KV_TEXT_MAX];

    cr_assert(policy_rotates(&p, p.k_type));
    cr_assert_not(policy_rotates(&p, p.v_type), "FP8's steps follow each value: worse rotated");
    policy_print(&p, text, sizeof(text));
    cr_assert_str_eq(text, "kv8,center=auto,rot=auto+full,chunk=512");
    p = parse("kv8,rot=off+h2o:64");
    cr_assert_not(policy_rotates(&p, p.k_type));
    p = parse("kv8,rot=on+h2o:64");
    cr_assert(policy_rotates(&p, p.k_type));
    p = parse("q8_0");
    cr_assert(policy_rotates(&p, p.k_type));
    cr_assert(policy_rotates(&p, p.v_type));
    p = parse("kv4");
    cr_assert_eq(p.k_type, OPS_KV_G4);
    cr_assert(policy_rotates(&p, p.k_type));
    cr_assert(policy_rotates(&p, p.v_type));
    p = parse("k8v4+h2o:64");
    cr_assert_eq(p.k_type, OPS_KV_I8);
    cr_assert_eq(p.v_type, OPS_KV_G4);
    cr_assert(policy_rotates(&p, p.v_type));
    p = parse("q4_0");
    cr_assert(policy_rotates(&p, p.k_type));
    cr_assert(policy_rotates(&p, p.v_type));
    p = parse("kv8+h2o:64,pos=new"); /* turned as it is read */
    cr_assert_not(policy_rotates(&p, p.k_type));
    p = parse("kv8+sparq"); /* ranks by dims */
    cr_assert_not(policy_rotates(&p, p.k_type));
    p = parse("fp8");
    cr_assert_not(policy_rotates(&p, p.k_type));
    p = parse("full");
    cr_assert_not(policy_rotates(&p, p.k_type));
}

/* Of a store that one layer reads nothing changes. */
Test(policy, types_of_shared_stores)
{
    struct policy p = parse("kv4,shared=kv8");
    char text[KV_TEXT_MAX];

    policy_print(&p, text, sizeof(text));
    cr_assert_str_eq(text, "kv4,center=auto,rot=auto,shared=kv8+full,chunk=512");
    cr_assert_eq(policy_k_type(&p, false), OPS_KV_G4);
    cr_assert_eq(policy_v_type(&p, false), OPS_KV_G4);
    cr_assert_eq(policy_k_type(&p, true), OPS_KV_I8);
    cr_assert_eq(policy_v_type(&p, true), OPS_KV_FP8);
    p = parse("k8v4,shared=same");
    policy_print(&p, text, sizeof(text));
    cr_assert_str_eq(text, "k8v4,center=auto,rot=auto+full,chunk=512", "texts of before stay");
    cr_assert_eq(policy_v_type(&p, true), OPS_KV_G4);
}

/* Files from before the options hold keys as the model made them, and do not say so. */
Test(policy, saved_before_centers)
{
    struct policy p = parse("fp8,center=off");
    struct policy q;

    cr_assert(policy_same_saved(&p, "fp8+full,chunk=512"));
    cr_assert_not(policy_same_saved(&p, "fp8,center=auto+full,chunk=512"));
    p = parse("fp8");
    cr_assert_not(policy_same_saved(&p, "fp8+full,chunk=512"));
    cr_assert(policy_same_saved(&p, "fp8,center=auto+full,chunk=512"));
    cr_assert_eq(policy_parse_saved("kv8+full,chunk=512", &q, NULL), 0);
    cr_assert_eq(q.center, POLICY_CENTER_OFF);
    cr_assert_eq(policy_parse_saved("kv8,center=auto+full,chunk=512", &q, NULL), 0);
    cr_assert_eq(q.center, POLICY_CENTER_AUTO);
    cr_assert_eq(q.rot, POLICY_ROT_OFF);
    cr_assert_eq(policy_parse_saved("kv8,center=auto,rot=auto+full,chunk=512", &q, NULL), 0);
    cr_assert_eq(q.rot, POLICY_ROT_AUTO);
    p = parse("kv8");
    cr_assert_not(policy_same_saved(&p, "kv8,center=auto+full,chunk=512"));
    cr_assert(policy_same_saved(&p, "kv8,center=auto,rot=auto+full,chunk=512"));
    p = parse("kv8,rot=off");
    cr_assert(policy_same_saved(&p, "kv8,center=auto+full,chunk=512"));
    cr_assert_eq(policy_parse_saved("f16+full,chunk=512", &q, NULL), 0);
    p = parse("f16+full,chunk=512");
    cr_assert(policy_same_saved(&p, "f16+full,chunk=512"));
    cr_assert_eq(policy_parse_saved("kv9", &q, NULL), -EINVAL);
}

Test(policy, canonical_text_says_the_same)
{
    const char *texts[] = {
        "full",
        "fp8",
        "kv8,center=off",
        "kv8,rot=on+recency:300",
        "q4_0,rot=off,center=off",
        "kv4,rot=off",
        "k8v4+window:100",
        "k8v4,shared=kv8+window:100",
        "k16v8+full,chunk=64",
        "window:1024",
        "sinks:4+window:50%",
        "bf16+sinks:2+keyformer:50%ctx,noise=const,tau=1.25..2,damp=0.5",
        "recency:300,decay=0.9",
        "h2o:50%,score=layer,prefill=bounded",
        "fp8+streaming:1020",
        "sinks:0+streaming:50%ctx,min=64,chunk=1",
        "kv8+sinks:4+snapkv:50%,observe=16,kernel=5,pool=avg,prefill=dense",
        "fp8+snapkv:50%+sparq:r=16,layout=rank8",
        "kv4+sinks:4+expected:50%,recent=10%,ahead=64,every=256,cov=off,floor=0.02,prefill=bounded",
        "kvzap:50%",
        "fp8+sinks:2+kvzap:300,window=7,prefill=bounded,chunk=64,layers=pyramid",
        "f32+h2o:100",
        "sparq",
        "k16v8+sparq:r=16,k=128,local=32,mean=on,layout=2k",
        "h2o:50%+sparq,mode=as-shipped,k=7",
        "fp8+infinigen:alpha=5.2,cap=10%,partial=0.25,skew=off",
        "infinigen:count=400,partial8=on",
        "infinigen:share=5%,pool=device",
        "infinigen:share=5%,pool=disk",
        "infinigen:pool=300,victim=lru",
        "k16v8+sinks:4+infinigen:share=5%,pool=60%ctx,victim=counter,exempt=100",
        "infinigen:pool=60%,victim=fifo",
        "infinigen:pool=60%ctx,full=spill,victim=lru",
        "infinigen:pool=90,full=spill,exempt=89",
        "topv:100,renorm=off+fp8",
        "sinks:4096+keyformer:50%ctx,recent=20%,tau=0.123456..0.654321,damp=0.123456,min=16777216,"
        "observe=4096,seed=2147483647,prefill=bounded,chunk=65536+sparq:k=16777216,local=16777216,"
        "mode=as-shipped,layout=rank8",
    };

    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        struct policy p = parse(texts[i]);
        struct policy q;
        char text[KV_TEXT_MAX];
        char again[KV_TEXT_MAX];

        policy_print(&p, text, sizeof(text));
        q = parse(text);
        cr_assert_eq(memcmp(&p, &q, sizeof(p)), 0, "%s -> %s", texts[i], text);
        policy_print(&q, again, sizeof(again));
        cr_assert_str_eq(text, again);
    }
}

Test(policy, what_queries_read)
{
    struct ops_select s;
    struct policy p = parse("sparq:r=16,k=100");

    cr_assert_str_eq(place_word(&p), "full");
    select_make(&p, &s);
    cr_assert_eq(s.kind, OPS_SELECT_SPARQ);
    cr_assert_eq(s.r, 16);
    cr_assert_eq(s.k, 100);
    cr_assert_eq(s.local, 25, "a quarter of k");
    cr_assert_not(select_means(&p, 9, 3, 3), "queries share heads");
    cr_assert(select_means(&p, 8, 8, 8));
    p = parse("sparq:k=100,mode=as-shipped,local=9,mean=on");
    select_make(&p, &s);
    cr_assert_eq(s.k, 101, "the current token is free");
    cr_assert_eq(s.local, 10);
    cr_assert(select_means(&p, 9, 3, 3));
    p = parse("sparq:mean=off");
    cr_assert_not(select_means(&p, 8, 8, 8));
    p = parse("topv:64");
    select_make(&p, &s);
    cr_assert_eq(s.kind, OPS_SELECT_TOPV);
    cr_assert_eq(s.k, 64);
    cr_assert_eq(s.local, 0);
    cr_assert(s.renorm);
    p = parse("h2o:40");
    select_make(&p, &s);
    cr_assert_eq(s.kind, OPS_SELECT_ALL);
}

Test(policy, faults_say_where)
{
    static const struct {
        const char *text;
        int at;
        const char *holds;
        int code;
    } faults[] = {
        {"fulll", 1, "did you mean", -EINVAL},
        {"f16+", 5, "the words are", -EINVAL},
        {"f16+fp8", 5, "second word of precision", -EINVAL},
        {"window:8+h2o:9", 10, "second word", -EINVAL},
        {"window", 7, "budget must follow", -EINVAL},
        {"window:", 8, "from 2 to", -EINVAL},
        {"window:1", 8, "from 2 to", -EINVAL},
        {"window:-5", 8, "from 2 to", -EINVAL},
        {"window:99999999999999999999", 8, "from 2 to", -EINVAL},
        {"h2o:101%", 5, "from 2 to 100", -EINVAL},
        {"h2o:1%", 5, "a budget in percent takes a number from 2 to 100", -EINVAL},
        {"h2o:50%,tau=1", 9, "takes the options", -EINVAL},
        {"h2o:50%,recent=101%", 16, "from 0 to 100", -EINVAL},
        {"h2o:50%,recent=30", 18, "'%' must follow", -EINVAL},
        {"keyformer:50%,tau=0..2", 19, "from 0.01 to 100", -EINVAL},
        {"keyformer:50%,tau=1..", 22, "from 0.01 to 100", -EINVAL},
        {"keyformer:50%,tau=nan", 19, "from 0.01 to 100", -EINVAL},
        {"keyformer:50%,noise=loud", 21, "one of once fresh", -EINVAL},
        {"full,chunk=0", 12, "from 1 to 65536", -EINVAL},
        {"full chunk=1", 5, "must stand here", -EINVAL},
        {"sinks:4", 8, "needs a word beside it", -EINVAL},
        {"sinks:100+h2o:110", 18, "leave nothing", -EINVAL},
        {"f16,chunk=3", 5, "f16 takes no options", -EINVAL},
        {"k16v8,center=off", 7, "k16v8 takes no options", -EINVAL},
        {"fp8,chunk=3", 5, "fp8 takes the options center", -EINVAL},
        {"fp8,center=on", 12, "center is one of auto off", -EINVAL},
        {"fp8,centre=off", 5, "did you mean 'center'", -EINVAL},
        {"fp8,rot=on", 5, "fp8 takes the options center", -EINVAL},
        {"kv8,rot=yes", 9, "rot is one of auto on off", -EINVAL},
        {"kv8,rot=on+sparq", 12, "rank keys by dims", -EINVAL},
        {"kv8,rot=on+h2o:64,pos=new", 26, "pos=new turns every key", -EINVAL},
        {"streaming:64,pos=org", 14, "streaming takes the options min chunk", -EINVAL},
        {"streaming:64+sparq", 14, "pos=new rotates every key", -EINVAL},
        {"streaming:64+exit:draft", 14, "exit:draft takes back", -EINVAL},
        {"snapkv:64,kernel=6", 19, "an odd number of neighbours, not kernel=6", -EINVAL},
        {"snapkv:64,kernel=65", 18, "from 1 to 63", -EINVAL},
        {"snapkv:64,pool=sum", 16, "pool is one of max avg", -EINVAL},
        {"snapkv:64,prefill=bounded", 26, "not prefill=bounded", -EINVAL},
        {"snapkv:30", 10, "32 recent slots leave nothing of a budget of 30", -EINVAL},
        {"snapkv:64+exit:0.9", 11, "exit skips layers", -EINVAL},
        {"expected", 9, "a budget must follow", -EINVAL},
        {"expected:64,observe=8", 13, "expected takes the options", -EINVAL},
        {"expected:64,pos=new", 13, "expected takes the options", -EINVAL},
        {"expected:64,ahead=0", 19, "from 1 to 65536", -EINVAL},
        {"expected:64,cov=maybe", 17, "cov is one of off on", -EINVAL},
        {"sinks:50+expected:64", 21, "50 sinks and 19 recent slots leave nothing of", -EINVAL},
        {"kvzap", 6, "a budget must follow", -EINVAL},
        {"kvzap:64,observe=8", 10, "kvzap takes the options", -EINVAL},
        {"kvzap:64,window=0", 17, "from 1 to 65536", -EINVAL},
        {"sinks:40+kvzap:64", 18, "40 sinks and 32 recent slots leave nothing of", -EINVAL},
        {"sparq:r=0", 9, "from 1 to 1024", -EINVAL},
        {"sparq:", 7, "takes the options r k local mode mean layout", -EINVAL},
        {"sparq:k=16,local=17", 1, "latest 17 slots are more than k=16", -EINVAL},
        {"fp8+sparq:layout=thrice", 18, "one of once 2k rank8", -EINVAL},
        {"sparq:tau=1", 7, "takes the options", -EINVAL},
        {"topv", 5, "number of slots must follow", -EINVAL},
        {"topv:0", 6, "from 1 to", -EINVAL},
        {"topv:8,r=4", 8, "takes the options renorm", -EINVAL},
        {"sparq+topv:9", 7, "a second word for which tokens are read", -EINVAL},
        {"sparq+window:8,pos=new", 1, "none can be left out", -EINVAL},
        {"window:8,pos=new+topv:4", 18, "none can be left out", -EINVAL},
        {"infinigen:pool=many", 16, "pool is one of device host disk", -EINVAL},
        {"infinigen:pool=1", 16, "from 2 to", -EINVAL},
        {"infinigen:pool=30", 18, "32 recent slots leave nothing of a budget of 30", -EINVAL},
        {"infinigen:pool=90,victim=oldest", 26, "victim is one of fifo lru counter", -EINVAL},
        {"infinigen:full=spill", 1, "needs a pool of so many slots", -EINVAL},
        {"infinigen:full=spill,pool=disk", 1, "needs a pool of so many slots", -EINVAL},
        {"infinigen:pool=90,full=keep", 24, "full is one of drop spill", -EINVAL},
        {"infinigen:pool=90,full+f16", 19, "'full' is a word of its own, so '+'", -EINVAL},
        {"infinigen:pool=90,full+f16", 19, "option of infinigen has '=' and a value", -EINVAL},
        {"infinigen:full", 11, "'full' is a word of its own", -EINVAL},
        {"infinigen:share=5%,f16", 20, "'f16' is a word of its own", -EINVAL},
        {"fp8,full", 5, "'full' is a word of its own, so '+' must stand before it", -EINVAL},
        {"h2o:50%,full=spill", 9, "h2o takes the options", -EINVAL},
        {"infinigen:pool=90,full:spill", 19, "'full' is a word of its own", -EINVAL},
        {"infinigen:pool=30,full=spill", 29, "32 recent slots leave nothing", -EINVAL},
        {"sinks:4+infinigen:pool=90,full=spill", 37, "needs a word beside it", -EINVAL},
        {"infinigen:pool=90+window:30", 1, "no other word for that", -EINVAL},
        {"infinigen:alpha=-1", 17, "from 0 to 1000", -EINVAL},
        {"infinigen:partial=0", 19, "from 0.01 to 1", -EINVAL},
        {"infinigen:partial8=16", 20, "partial8 is one of off on", -EINVAL},
        {"infinigen:cap=20", 17, "'%' must follow", -EINVAL},
        {"infinigen:share=5%,count=9", 1, "both say how many", -EINVAL},
        {"f16+infinigen+h2o:50%", 5, "no other word for that", -EINVAL},
        {"infinigen+sparq", 11, "a second word for which tokens are read", -EINVAL},
        {"q8_0+sparq", 6, "no dim or slot is read alone", -EINVAL},
        {"kv4+sparq", 5, "no dim or slot is read alone", -EINVAL},
        {"topv:9+q4_0", 1, "no dim or slot is read alone", -EINVAL},
        {"f16+exit", 9, "':' and a probability must follow", -EINVAL},
        {"exit:1.1", 6, "exit takes a number from 0.01 to 1, or \"draft\"", -EINVAL},
        {"exit:0.9+exit:0.8", 10, "a second \"exit\"", -EINVAL},
        {"exit:0", 6, "exit takes a number from 0.01 to 1, or \"draft\"", -EINVAL},
        {"exit:.", 6, "exit takes a number from 0.01 to 1, or \"draft\"", -EINVAL},
        {"exit:", 6, "exit takes a number from 0.01 to 1, or \"draft\"", -EINVAL},
        {"exit:often", 6, "exit takes a number from 0.01 to 1, or \"draft\"", -EINVAL},
        {"exit:drafts", 6, "or \"draft\"", -EINVAL},
        {"exit:draft+exit:0.8", 12, "a second \"exit\"", -EINVAL},
        {"exit:draft+window:20", 1, "exit:draft takes back", -EINVAL},
        {"fp8+exit:draft+keyformer:50%", 5, "exit:draft takes back", -EINVAL},
        {"topv:20+exit:draft", 9, "exit:draft takes back", -EINVAL},
        {"exit:0.9,k=3", 10, "exit takes no options", -EINVAL},
        {"fp8+exit:0.9+keyformer:50%", 5, "exit skips layers for some tokens", -EINVAL},
        {"sparq+exit:0.9", 7, "exit skips layers for some tokens", -EINVAL},
    };

    for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++) {
        struct policy p;
        struct error e = {0};
        char at[64];

        (void)snprintf(at, sizeof(at), "character %d:", faults[i].at);
        cr_assert_eq(policy_parse(faults[i].text, &p, &e), faults[i].code, "%s", faults[i].text);
        cr_assert(strstr(e.text, at), "%s: %s", faults[i].text, e.text);
        cr_assert(strstr(e.text, faults[i].holds), "%s: %s", faults[i].text, e.text);
    }
}

Test(policy, mixes)
{
    struct policy_mix m;
    struct error e = {0};

    cr_assert_eq(policy_parse_mix("full=60%;fp8+keyformer:50%,recent=30%=40%", &m, &e), 0, "%s",
                 e.text);
    cr_assert_eq(m.n, 2);
    cr_assert_eq(m.part[0].share, 60);
    cr_assert_eq(m.part[1].share, 40);
    cr_assert_eq(m.part[1].policy.recent, 30);
    cr_assert_eq(policy_parse_mix(NULL, &m, &e), 0);
    cr_assert_eq(m.part[0].share, 100);
    cr_assert_eq(policy_parse_mix("full=60%;fp8=30%", &m, &e), -EINVAL);
    cr_assert(strstr(e.text, "sum to 100%"));
    e.code = 0;
    cr_assert_eq(policy_parse_mix("full;", &m, &e), -EINVAL);
}

Test(policy, mistyped_words_are_guessed)
{
    static const struct {
        const char *text;
        const char *said;
    } cases[] = {
        {"keyfromer:50%", "unknown word 'keyfromer'; did you mean 'keyformer'?"},
        {"fp8+h20:24", "unknown word 'h20'; did you mean 'h2o'?"},
        {"windw:24", "did you mean 'window'?"},
        {"keyformer:50%,recnt=30%", "did you mean 'recent'? keyformer takes the options"},
        {"somethingelse", "the words are: f32 f16 "},
        {"+", "the words are: f32 f16 "},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct error e = {0};
        struct policy p;

        cr_assert_eq(policy_parse(cases[i].text, &p, &e), -EINVAL);
        cr_assert(strstr(e.text, cases[i].said), "%s: %s", cases[i].text, e.text);
    }
}

/* Also in a client's message, which is shorter, and far behind in a policy. */
Test(policy, the_list_of_words_is_whole)
{
    struct error e = {0};
    struct policy p;

    cr_assert_eq(policy_parse("window:24+somethingelse", &p, &e), -EINVAL);
    for (int i = 0; i < policy_n_words(); i++) {
        cr_assert(strstr(e.text, policy_word_at(i)->name), "%s", e.text);
    }
    cr_assert_str_eq(e.text + strlen(e.text) - 5, " exit");
    cr_assert_lt(strlen(e.text) + 1, sizeof(((struct lane_error *)NULL)->text));
}
