/* SPDX-License-Identifier: PostgreSQL */
/*
 * What signing and verifying cost, for bench.py and bench_signatures.py:
 *
 *     bench_signatures sign SIZE ROUNDS       an event whose map has SIZE bytes, signed, against libsodium's call over
 *                                             SIZE bytes
 *     bench_signatures publish SIZE ROUNDS    the same event made and signed, all that the publisher does
 *     bench_signatures verify SIZE ROUNDS     its content verified as a subscriber does
 *     bench_signatures threads N SIZE SECONDS libsodium's verifications of different messages a second on N threads, and
 *                                             CPU time of each
 *     bench_signatures contents N SIZE signed|unsigned PREFIX
 *                                             N contents of exactly SIZE bytes, as lines for COPY into a bytea
 *     bench_signatures trust PATTERN          a trust file with the key that signs
 *
 * A round is a batch of the bare call, one of ours and one of the bare call again, each in the thread's CPU time, so that
 * what else the machine does falls on all three alike, or not at all. The figures are medians over the rounds; ours is
 * set against the bare call before it and against the one behind it.
 */
#include <errno.h>
#include <pthread.h>
#include <sodium.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/buf.h"
#include "base/clock.h"
#include "client/event_content.h"
#include "codec/cose_key.h"
#include "codec/event.h"
#include "codec/signed_event.h"
#include "codec/trust.h"
#include "codec/verify.h"

/* Of one call each: so short that most rounds are not interrupted. */
#define BATCH       16
#define SIZE_MIN    512
#define SIZE_MAX_   (1 << 20)
#define ROUNDS_MAX  100000
#define THREADS_MAX 64

static const char prefix[] = "orders.created";

static _Noreturn void die(const char *what)
{
    (void)fprintf(stderr, "bench_signatures: %s\n", what);
    exit(1);
}

/* ---- what is signed ---- */

struct signer {
    struct cose_key key;
    uint8_t secret[COSE_KEY_SECRET_SIZE];
    struct buf content, room, why;
    uint8_t *filler; /* the data of an event */
};

static struct signer signer_new(void)
{
    static const uint8_t seed[crypto_sign_SEEDBYTES] = "the key of walbus' benchmarks: 1";
    struct signer s = {.filler = malloc(SIZE_MAX_)};

    if (!s.filler)
        die("no memory");
    randombytes_buf_deterministic(s.filler, SIZE_MAX_, seed);
    (void)crypto_sign_seed_keypair(s.key.x, s.secret, seed);
    cose_key_default_kid(&s.key, s.key.kid);
    s.key.kid_size = COSE_KEY_KID_DEFAULT_SIZE;
    return s;
}

static void signer_deinit(struct signer *s)
{
    buf_deinit(&s->content);
    buf_deinit(&s->room);
    buf_deinit(&s->why);
    free(s->filler);
}

static void put_event(struct signer *s, const char *for_prefix, size_t filler)
{
    struct walbus_event event = WALBUS_EVENT_INIT;
    const struct event_defaults defaults = {"/shop", clock_realtime_us(), SIZE_MAX_};
    char id[WALBUS_ID_SIZE];

    event.prefix = for_prefix;
    event.data = s->filler;
    event.data_size = filler;
    event.data_kind = WALBUS_DATA_BYTES;
    buf_clear(&s->content);
    if (event_content_put(&event, &defaults, &s->content, id, &s->why) != WALBUS_OK)
        die("no event");
}

/* The content of the event that was put, signed; inside s->room. */
static struct bytes sign_event(struct signer *s, const char *for_prefix)
{
    const struct signed_event_scope scope = {bytes_of_text(for_prefix), {NULL, 0}};
    struct bytes content;

    if (signed_event_sign(
            (struct bytes){s->content.data + EVENT_TAG_SIZE, s->content.size - EVENT_TAG_SIZE},
            &scope, &s->key, s->secret, &s->room, &content) != 0)
        die("not signed");
    return content;
}

/* How much data an event needs for its map to have `size` bytes. */
static size_t filler_for_map(struct signer *s, size_t size)
{
    size_t filler = size / 2; /* as wide a length as in the end */

    put_event(s, prefix, filler);
    filler += size - (s->content.size - EVENT_TAG_SIZE);
    put_event(s, prefix, filler);
    if (s->content.size - EVENT_TAG_SIZE != size)
        die("no event has that size");
    return filler;
}

static struct trust *trust_of(const struct signer *s, const char *pattern, struct buf *text)
{
    uint8_t key[COSE_KEY_PUBLIC_ENCODED_MAX];
    char base64[2 * COSE_KEY_PUBLIC_ENCODED_MAX], kid[2 * COSE_KEY_KID_DEFAULT_SIZE + 1];
    size_t size = cose_key_encode_public(&s->key, key);
    struct trust_fault fault;
    struct trust *trust;

    (void)sodium_bin2hex(kid, sizeof kid, s->key.kid, s->key.kid_size);
    (void)sodium_bin2base64(base64, sizeof base64, key, size, sodium_base64_VARIANT_ORIGINAL);
    buf_printf(text, "[%s]\nkey = %s\nallow = %s\n", kid, base64, pattern);
    if (text->failed || trust_parse(buf_bytes(text), &trust, &fault) != 0)
        die("no trust file");
    return trust;
}

/* ---- against the bare calls ---- */

struct compared {
    size_t size, filler;
    struct signer signer;
    uint8_t signature[crypto_sign_BYTES]; /* the bare call's, over `size` bytes of filler */
    struct trust *trust;
    struct bytes content; /* signed */
    struct buf scratch;
};

static void bare_sign(struct compared *c)
{
    (void)crypto_sign_detached(c->signature, NULL, c->signer.filler, c->size, c->signer.secret);
}

static void our_sign(struct compared *c)
{
    struct bytes content = sign_event(&c->signer, prefix);

    /* As the publisher does, into its statement. */
    buf_clear(&c->scratch);
    buf_append(&c->scratch, content.data, content.size);
}

static void our_publish(struct compared *c)
{
    put_event(&c->signer, prefix, c->filler);
    our_sign(c);
}

static void bare_verify(struct compared *c)
{
    if (crypto_sign_verify_detached(c->signature, c->signer.filler, c->size, c->signer.key.x) != 0)
        die("libsodium does not verify its own signature");
}

static void our_verify(struct compared *c)
{
    const struct verify_scope scope = {bytes_of_text(prefix), {NULL, 0}, VERIFY_NO_TIME};
    struct verify_result result;

    if (verify_content(c->trust, &scope, c->content, &c->scratch, &result) != 0 ||
        result.status != VERIFY_VALID)
        die("an event of ours is not valid");
}

/* Of CLOCK_THREAD_CPUTIME_ID or CLOCK_PROCESS_CPUTIME_ID. */
static double cpu_ns(clockid_t clock)
{
    struct timespec ts;

    (void)clock_gettime(clock, &ts);
    return (double)ts.tv_sec * 1e9 + (double)ts.tv_nsec;
}

static double batch_ns(void (*call)(struct compared *), struct compared *c)
{
    double began = cpu_ns(CLOCK_THREAD_CPUTIME_ID);

    for (int i = 0; i < BATCH; i++)
        call(c);
    return (cpu_ns(CLOCK_THREAD_CPUTIME_ID) - began) / BATCH;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median(double *values, size_t n)
{
    qsort(values, n, sizeof *values, by_value);
    return values[n / 2];
}

static void compare(size_t size, size_t rounds, void (*bare)(struct compared *),
                    void (*ours)(struct compared *))
{
    struct compared c = {.size = size, .signer = signer_new()};
    struct buf text = BUF_INIT;
    double *values = calloc(6 * rounds, sizeof *values);
    double *first = values, *walbus = first + rounds, *again = walbus + rounds,
           *same = again + rounds, *ratio = same + rounds;

    if (!values)
        die("no memory");
    c.filler = filler_for_map(&c.signer, size);
    c.trust = trust_of(&c.signer, prefix, &text);
    bare_sign(&c);
    put_event(&c.signer, prefix, c.filler);
    c.content = sign_event(&c.signer, prefix);
    for (size_t i = 0; i < rounds + 1; i++) {
        size_t at = i > 0 ? i - 1 : 0; /* the very first round warms up, and is written over */

        first[at] = batch_ns(bare, &c);
        walbus[at] = batch_ns(ours, &c);
        again[at] = batch_ns(bare, &c);
        same[at] = again[at] / first[at];
        ratio[2 * at] = walbus[at] / first[at];
        ratio[2 * at + 1] = walbus[at] / again[at];
    }
    (void)printf(
        "{\"bare\": %.0f, \"again\": %.0f, \"walbus\": %.0f, \"ratio\": %.4f, \"same\": %.4f}\n",
        median(first, rounds), median(again, rounds), median(walbus, rounds),
        median(ratio, 2 * rounds), median(same, rounds));
    free(values);
    buf_deinit(&text);
    buf_deinit(&c.scratch);
    trust_free(c.trust);
    signer_deinit(&c.signer);
}

/* ---- on several threads ---- */

/* What is verified again and again. Of a signature that it has just seen the processor remembers where the arithmetic
 * branches; nobody who verifies messages has it that well. */
#define DIFFERENT 1000u

struct crew {
    size_t size;
    struct signer signer;
    uint8_t *messages;                       /* DIFFERENT of `size` bytes, one behind the other, … */
    uint8_t signatures[DIFFERENT][crypto_sign_BYTES]; /* … and of each of them */
    atomic_bool over;
    atomic_ullong done;
};

static struct crew *crew_new(size_t size)
{
    static const uint8_t seed[randombytes_SEEDBYTES] = "what walbus' benchmarks verify.";
    struct crew *crew = calloc(1, sizeof *crew);

    if (!crew || !(crew->messages = malloc(DIFFERENT * size)))
        die("no memory");
    crew->size = size;
    crew->signer = signer_new();
    randombytes_buf_deterministic(crew->messages, DIFFERENT * size, seed);
    for (size_t i = 0; i < DIFFERENT; i++)
        (void)crypto_sign_detached(crew->signatures[i], NULL, crew->messages + i * size, size, crew->signer.secret);
    return crew;
}

static void crew_free(struct crew *crew)
{
    signer_deinit(&crew->signer);
    free(crew->messages);
    free(crew);
}

static void *verify_until_over(void *argument)
{
    struct crew *crew = argument;
    unsigned long long n = 0;

    for (; !atomic_load_explicit(&crew->over, memory_order_relaxed); n++) {
        size_t i = n % DIFFERENT;

        if (crypto_sign_verify_detached(crew->signatures[i], crew->messages + i * crew->size, crew->size,
                                        crew->signer.key.x) != 0)
            die("libsodium does not verify its own signature");
    }
    (void)atomic_fetch_add(&crew->done, n);
    return NULL;
}

static void threads(size_t n, size_t size, size_t seconds)
{
    struct crew *crew = crew_new(size);
    struct timespec wait = {(time_t)seconds, 0};
    pthread_t running[THREADS_MAX];
    uint64_t began = clock_monotonic_ns();
    double cpu_began = cpu_ns(CLOCK_PROCESS_CPUTIME_ID);

    for (size_t i = 0; i < n; i++)
        if (pthread_create(&running[i], NULL, verify_until_over, crew) != 0)
            die("no thread");
    while (nanosleep(&wait, &wait) != 0)
        continue;
    atomic_store(&crew->over, true);
    for (size_t i = 0; i < n; i++)
        (void)pthread_join(running[i], NULL);

    double took = (double)(clock_monotonic_ns() - began) / 1e9;
    double done = (double)atomic_load(&crew->done);

    (void)printf("{\"rate\": %.0f, \"cpu_us\": %.3f}\n", done / took,
                 (cpu_ns(CLOCK_PROCESS_CPUTIME_ID) - cpu_began) / 1e3 / done);
    crew_free(crew);
}

/* ---- contents for a server ---- */

static struct bytes content_with(struct signer *s, bool is_signed, const char *for_prefix,
                                 size_t filler)
{
    put_event(s, for_prefix, filler);
    return is_signed ? sign_event(s, for_prefix) : buf_bytes(&s->content);
}

static void contents(size_t n, size_t size, bool is_signed, const char *for_prefix)
{
    struct signer s = signer_new();
    size_t filler = size / 2;
    char *hex = malloc(2 * size + 1);

    if (!hex)
        die("no memory");
    filler += size - content_with(&s, is_signed, for_prefix, filler).size;
    for (size_t i = 0; i < n; i++) {
        struct bytes content = content_with(&s, is_signed, for_prefix, filler);

        if (content.size != size)
            die("no content has that size");
        (void)printf("\\\\x%s\n", sodium_bin2hex(hex, 2 * size + 1, content.data, content.size));
    }
    free(hex);
    signer_deinit(&s);
}

/* ---- the command line ---- */

static size_t number(const char *text, size_t least, size_t most)
{
    char *end;

    errno = 0;
    unsigned long n = strtoul(text, &end, 10);
    if (errno != 0 || *end != '\0' || n < least || n > most)
        die("a number is not one, or out of range");
    return n;
}

static void print_trust(const char *pattern)
{
    struct signer s = signer_new();
    struct buf text = BUF_INIT;

    trust_free(trust_of(&s, pattern, &text));
    (void)fputs(buf_str(&text), stdout);
    buf_deinit(&text);
    signer_deinit(&s);
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";

    if (sodium_init() < 0)
        die("libsodium does not start");
    if (strcmp(what, "sign") == 0 && argc == 4)
        compare(number(argv[2], SIZE_MIN, SIZE_MAX_), number(argv[3], 1, ROUNDS_MAX), bare_sign,
                our_sign);
    else if (strcmp(what, "publish") == 0 && argc == 4)
        compare(number(argv[2], SIZE_MIN, SIZE_MAX_), number(argv[3], 1, ROUNDS_MAX), bare_sign,
                our_publish);
    else if (strcmp(what, "verify") == 0 && argc == 4)
        compare(number(argv[2], SIZE_MIN, SIZE_MAX_), number(argv[3], 1, ROUNDS_MAX), bare_verify,
                our_verify);
    else if (strcmp(what, "threads") == 0 && argc == 5)
        threads(number(argv[2], 1, THREADS_MAX), number(argv[3], SIZE_MIN, SIZE_MAX_),
                number(argv[4], 1, 3600));
    else if (strcmp(what, "contents") == 0 && argc == 6)
        contents(number(argv[2], 1, 1 << 24), number(argv[3], SIZE_MIN, SIZE_MAX_),
                 strcmp(argv[4], "signed") == 0, argv[5]);
    else if (strcmp(what, "trust") == 0 && argc == 3)
        print_trust(argv[2]);
    else
        die("sign SIZE ROUNDS | publish SIZE ROUNDS | verify SIZE ROUNDS | threads N SIZE SECONDS "
            "| "
            "contents N SIZE signed|unsigned PREFIX | trust PATTERN");
    return fflush(stdout) == 0 ? 0 : 1;
}
