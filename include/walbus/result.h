/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_RESULT_H
#define WALBUS_RESULT_H

/*
 * What every function of libwalbus that can fail returns. WALBUS_OK is 0, every
 * failure is positive. The list below is the only one: the enum, the names and
 * the sentences are made from it. Numbers are only appended, never changed, so
 * a program compiled against an older version may meet numbers it does not
 * know; walbus_result_text() knows them as long as the library does.
 *
 * A result says what went wrong; the object at work has the particulars (which
 * byte, the server's own words) in its ..._error() function.
 */

#include "walbus/macros.h"

#ifdef __cplusplus
extern "C" {
#endif

#define WALBUS_RESULTS(X)                                                                         \
    X(OK, 0, "success")                                                                           \
    /* The caller's mistake: NULL where it is not allowed, a number out of its range, an unknown  \
       flag or kind, a struct whose size or later members this version does not know. Nothing     \
       was done. */                                                                               \
    X(BAD_ARGUMENT, 1, "an argument is NULL or out of its range")                                 \
    /* Publishing: nothing was sent. Subscribing: nothing is lost, call again. */                 \
    X(NO_MEMORY, 2, "not enough memory")                                                          \
    /* The connection was not open (PQstatus is not CONNECTION_OK) when the call was made. */     \
    X(NOT_CONNECTED, 3, "the connection is not open")                                             \
    /* It broke during the call. Inside a transaction block nothing of it will be committed;      \
       outside of one, or non-transactional, the server may have done it. */                      \
    X(CONNECTION_LOST, 4, "the connection was lost during the call")                              \
    /* A command is in progress on the connection, or results are still to be read, or it is in   \
       COPY. */                                                                                   \
    X(BUSY, 5, "the connection is busy with another command")                                     \
    /* A call that waits for its result was made on a connection in pipeline mode. */             \
    X(PIPELINE, 6, "the connection is in pipeline mode, where only the send-only calls work")     \
    /* An earlier statement failed: the server takes nothing but ROLLBACK. Also when a result is  \
       read that the server skipped because an earlier command of the pipeline failed. */         \
    X(FAILED_TRANSACTION, 7, "the transaction has failed and can only be rolled back")            \
    /* The caller asked for that check: WALBUS_REQUIRE_TRANSACTION. */                            \
    X(NO_TRANSACTION, 8, "the connection is not inside a transaction block")                      \
    /* Publishing is stricter than receiving; the rules stand in publish.h. */                    \
    X(BAD_PREFIX, 9, "the prefix may not be published")                                           \
    /* One content is larger than the publisher's max_content, or a request than a frame. */      \
    X(TOO_LARGE, 10, "the content or the request is larger than allowed")                         \
    /* Each content is small enough, but together they are more than one statement can carry. */  \
    X(BATCH_TOO_LARGE, 11, "the events together are larger than one statement can carry")         \
    /* Not UTF-8, a name that is no CloudEvents attribute name or stands twice, too many          \
       attributes, a control character in the id, or data that is not exactly one                 \
       well-formed CBOR item. */                                                                  \
    X(BAD_EVENT, 12, "an attribute or the data of the event is not valid")                        \
    /* SQLSTATE 42501: the role may not execute pg_logical_emit_message. */                       \
    X(NOT_PERMITTED, 13, "the role may not emit logical messages")                                \
    /* Any other error of the server. In a transaction block the transaction has now failed. */   \
    X(SERVER, 14, "the server reported an error")                                                 \
    /* A PGresult that did not come from the statement, or not with that many events. */          \
    X(BAD_RESULT, 15, "the result is not that of the statement")                               \
    /* An unknown kind, an empty pattern, or more or longer filters than a subscription takes. */ \
    X(BAD_FILTER, 16, "a filter is not valid")                                                    \
    /* The path can never be one: it is empty, or too long for an address. */                     \
    X(BAD_SOCKET, 17, "the path of the router's socket is empty or too long")                     \
    /* There is no socket, or connecting to it failed; errno says why. */                         \
    X(NO_ROUTER, 18, "no router answers at the socket")                                           \
    /* The time that the caller gave is over. Nothing is lost. */                                 \
    X(TIMEOUT, 19, "the time has passed")                                                         \
    /* A signal handler of the caller ran while a call waited. Nothing is lost. */                \
    X(INTERRUPTED, 20, "a signal interrupted the wait")                                           \
    /* Not everything could be sent without waiting. */                                           \
    X(AGAIN, 21, "some is left to send: wait, and process")                                       \
    /* The router answered with an error. */                                                      \
    X(REFUSED, 22, "the router refused")                                                          \
    /* The position belongs to the journal of another identity. */                                \
    X(POSITION_LOST, 23, "the position belongs to another journal")                               \
    /* What the other end sent is not allowed by the protocol, or of another version. */          \
    X(PROTOCOL, 24, "the other end does not keep to the protocol")                                \
    /* Saving a position: it was not the one that this holder had left there. Roll back. */       \
    X(CONFLICT, 25, "another holder has saved a position, and is ahead")                          \
    /* A private key's file cannot be read, is not private, or holds no such key. */              \
    X(BAD_KEY, 26, "the key cannot be used")                                                      \
    /* The trust file cannot be read, or something in it is not understood. */                    \
    X(BAD_TRUST, 27, "the trust file cannot be used")

enum walbus_result {
#define WALBUS_RESULT_ENUM_(name, number, text) WALBUS_##name = number,
    WALBUS_RESULTS(WALBUS_RESULT_ENUM_)
#undef WALBUS_RESULT_ENUM_
};

/**
 * One sentence for people, without a full stop; for a number that the library
 * does not know "unknown result". Static, never NULL. Any thread, at any time.
 */
WALBUS_PUBLIC const char *walbus_result_text(enum walbus_result result);

/**
 * The name as in this header ("WALBUS_BUSY"); for a number that the library
 * does not know "WALBUS_?". Static, never NULL. Any thread, at any time.
 */
WALBUS_PUBLIC const char *walbus_result_name(enum walbus_result result);

#ifdef __cplusplus
}
#endif

#endif
