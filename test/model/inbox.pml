/* The protocol of the inbox, for spin: one message, two sidecars, the broker, the database, the application, `dead redrive`.
 * test/model/run checks it as it is, and then with one deliberate mistake after the other (BUG_…), each of which must be caught.
 *
 *   -DRESPONSE    completion: response; without it, completion: transaction
 *   -DPROGRESS    from some moment on nothing breaks any more (`calm`); the claim `progress` is checked: every copy of the message
 *                 is then acked or rejected at last. Without it everything may break for ever, and only the promises are checked
 *   -DPURGE       the row may be purged once, past the retention, at any moment after its completion
 *   -DOWN         `instance` is configured (transaction): a sidecar may take its own rows over at once
 *   -DNO_REDRIVE, -DNO_GRACE  without that process; without the time between OVER and STALE. They make the search smaller
 *   -DBUG_…       a deliberate mistake
 *
 * One step (`atomic`) is one statement at the database, one frame to the broker, or one answer of the application. A statement is one
 * transaction, so it may be one step; around it the other parties do what they like. After each statement its answer may
 * be lost (the connection broke): the step is then made again from where it stood, as DELIVERY_EV_REPEAT does.
 *
 * What stands for what:
 *   db, disk          the row of onceward.inbox, its letters in onceward.dead_letter, and the application's own table (`effects`): as
 *                     everybody sees them, and as far as the WAL is flushed. A synchronous commit flushes everything before it: disk = db.
 *                     An asynchronous one changes db alone; the WAL writer may follow at any moment; a crash of the database
 *                     takes db back to disk, and every open transaction with it.
 *   lock              the token of the application's transaction that holds the row's lock, 0: none. No statement of a sidecar waits
 *                     for it (SKIP LOCKED); a second complete() does, and then reads the row anew, so it is the next transaction.
 *   tokens 1, 2       the newest token of each sidecar. An older one of the same sidecar is in no row and can only be refused, by a
 *                     comparison of 16 bytes: there is nothing to search in that. window[x]: LIVE, OVER, or STALE: over for longer
 *                     than the grace. Time is only this order: any window may end at any moment after the claim.
 *   Sidecar           src/worker and src/core/delivery.c: `at` is the state of the one delivery. A state TO_X and its X-ING are one here;
 *                     PARKED, TO_LOOK, SUSPECT and FOLLOWING are to_claim: they hold nothing, and end in a claim. watch_commit
 *                     and watch_accepted are TO_CHECK, CHECKING, WATCHING after a 2xx and after a 202. REVOKING is a step at `out`.
 *   sidecar_claim_many  the steps at to_claim; sidecar_settle_many, _fail_many, _release_many, _bury_many: those at to_settle, to_fail,
 *                       to_release, to_bury;
 *   sidecar_look_many   those at watch_…; sidecar_keep_house (the sweep and the purge), onceward.complete, .extend: in World;
 *   sidecar_redrive     the process Redrive, as src/command/redrive.c.
 *
 * The application is as bad as can be: an answer of any kind may come at any moment, whatever its transactions do (transaction), and
 * a token that was sent may be used at any later time, again and again: retried transactions, repeated requests and handlers that
 * outlive their answer are all in this. With response completion a 2xx comes only after it acted.
 *
 * Bounds: 2 attempts, at most 2 copies in the queue and 2 letters at once. Claims, crashes, lost connections and redrives have none.
 *
 * Left out, and why that is no harm: the sidecar's own clock (its window begins before the claim is sent, so it ends before the
 * row's: sending is allowed while the window is LIVE; a sidecar that is stopped between this look and the send is outside the promise);
 * due times and backoff (any wait is possible); which failures are given back (suspects, brake, a connection that broke
 * meanwhile: each failure may be charged or given back here); batches (a statement decides each row by itself); deaths without a row;
 * messages that come back from the broker's dead letter exchange (x-death); `discard` (a person's decision).
 * Left out, though it could matter: a statement that the database executes only after its client has given the connection up and made the
 * next one.
 * A return at the very end of a drain, with the token left in the row because the database is silent, is a kill here: it is charged. */

#define LIVE 0
#define OVER 1
#define STALE 2
#define N 2                             /* tokens, and sidecars */
#define N_ATTEMPTS 2                    /* retry.max_attempts */

/* Promises. The names are constants, false, so that the message of a violated assertion tells which one it was. */
hidden byte acked_before_commit, rejected_before_letter, message_lost, effect_twice, ended_token_changed_row,
    window_cut_short, one_attempt_too_many, charged_without_fault, posted_after_completion, posted_while_another_token_lives,
    lock_ignored;
#define PROMISE(name, condition) assert(name || (condition))

mtype = { none, processing, completed, failed, waiting, dead };
mtype = { idle, to_claim, claimed, out, watch_commit, watch_accepted, to_settle, to_fail, to_release, to_bury, to_bury_used_up,
          to_ack, to_reject };

typedef Tables {
    mtype status = none;
    byte token;
    byte attempt;
    byte letters;                       /* a bit for each */
    byte effects;                       /* transaction: what the application committed; counted up to 2 */
};

Tables db, disk;
byte lock;
byte n_ready = 1, n_copies = 1;         /* of the message in the queue: ready, and ready or unacked */
byte hold[2];                           /* the sidecars' tokens; at to_claim: one whose claim has no answer yet */
#define t hold[_pid]
byte window[N + 1] = STALE;
bit sent[N + 1] = true;                 /* the application knows it */
bit extended[N + 1];
bit ended[N + 1] = true;                /* durably: used, failed, released, taken over, swept, buried, reset */
#ifdef PROGRESS
bit orphaned[N + 1];                    /* its sidecar died before it was sent */
#endif
#ifdef RESPONSE
bit acted[N + 1] = true;
#endif
byte n_charged;                         /* attempts that failed or whose token expired: all that may be counted */
bit was_completed;                      /* on disk */
#ifdef PURGE
bit past_retention;
#else
#define past_retention false
#endif

#ifdef PROGRESS
bit calm;
#define CHAOS (!calm)
#else
#define CHAOS true
#endif

/* The message is somewhere, durably. */
#define KEPT (n_copies > 0 || disk.status == completed || disk.letters != 0 || past_retention)

inline flush()
{
    disk.status = db.status;
    disk.token = db.token;
    disk.attempt = db.attempt;
    disk.letters = db.letters;
    disk.effects = db.effects;
    was_completed = was_completed || disk.status == completed;
    PROMISE(message_lost, KEPT)
}

/* A token's last word. What is never looked at again is set to one value, which saves states. */
inline finish(x)
{
    if
    :: x != 0 ->
        ended[x] = true;
        window[x] = STALE;
        extended[x] = false;
        sent[x] = true;
#ifdef RESPONSE
        acted[x] = true;
#endif
#ifdef PROGRESS
        orphaned[x] = false;
#endif
    :: else
    fi
}

/* The answer of a statement arrives, or does not. */
inline answered(next)
{
    if
    :: at = next;
       if
       :: next == to_ack -> forget()
       :: next == to_reject -> PROMISE(rejected_before_letter, disk.status == dead && disk.letters != 0); forget()
       :: else
       fi
    :: CHAOS
    fi
}

/* A claim that was lost in a crash, and whose token nobody has any more but the application: it can only be refused. */
inline forget()
{
#ifndef RESPONSE
    if
    :: db.token != t && disk.token != t -> finish(t)
    :: else
    fi;
#endif
    t = 0;
    told = false;
    only_expired = false
}

inline know(next)
{
    forget();
    at = next
}

/* The delivery goes back to the claim, with a new token; without its tag there is nothing left to do. */
inline again()
{
    forget();
    at = (tag -> to_claim : idle)
}

/* A delivery that waits for a claim loses its tag or is returned. A claim whose answer is unknown may be in the row: it is released.
 * Forgotten, it would expire, and the takeover would charge an attempt to a message that was never forwarded. */
inline leave()
{
    at = (t != 0 -> to_release : idle)
}

/* The row gets the token x: from a claim. */
inline take(x)
{
    db.status = processing;
    db.token = x;
    window[x] = LIVE;
    extended[x] = false;
    ended[x] = false;
    sent[x] = false;
#ifdef RESPONSE
    acted[x] = false;
#endif
}

#define OFFER (_pid + 1)                /* what a sidecar offers in a claim */

#define FREE (lock == 0)
#define MINE (db.status == processing && db.token == t)

#ifdef BUG_CLAIM_IGNORES_EXPIRY
#define TAKEABLE true
#else
#ifdef OWN
#define TAKEABLE (window[db.token] == STALE || db.token == OFFER)
#define IS_OWN (db.token == OFFER)
#else
#define TAKEABLE (window[db.token] == STALE)
#endif
#endif
#ifndef IS_OWN
#define IS_OWN false
#endif

#ifdef BUG_USED_UP_ROW_IS_CLAIMED
#define HAS_ATTEMPTS true
#else
#define HAS_ATTEMPTS (db.attempt < N_ATTEMPTS)
#endif

/* What the second and third statement of sidecar_claim_many find. */
#define CLAIMS_OWN (db.status == processing && t != 0 && db.token == t)
#define CLAIMS_EXPIRED (db.status == processing && db.token != t && HAS_ATTEMPTS && TAKEABLE)
#define CLAIMS_FAILED (db.status == failed && HAS_ATTEMPTS)
#define CLAIMS_WAITING (db.status == waiting)
#define EXPIRED (db.status == processing && db.token != t && window[db.token] == STALE)
#define USED_UP (db.attempt >= N_ATTEMPTS && (db.status == failed || EXPIRED))

/* A row that is locked is not here: the statements that write it ask for FREE. */
inline bury()
{
    finish(db.token);
    db.status = dead;
    db.token = 0;                       /* in the row it is the token of the death, which only a repeat asks for */
    if
    :: !(db.letters & 1) -> db.letters = db.letters | 1
    :: else ->
        assert(!(db.letters & 2));
        db.letters = db.letters | 2
    fi;
    flush()
}

inline may_send()
{
    u = 1;
    do
    :: u <= N ->
        PROMISE(posted_while_another_token_lives, u == t || !sent[u] || ended[u] || window[u] != LIVE);
        u++
    :: else -> break
    od;
    u = 0;
    PROMISE(posted_after_completion, !was_completed)
}

active [2] proctype Sidecar()
{
    mtype at = idle;
    bit tag;                            /* the delivery can still be acked */
    bit told;                           /* it knows that its token was extended */
    bit only_expired;
    byte u;

end:
    do
    /* --- the broker --- */
    :: atomic { at == idle && n_ready > 0 ->
        n_ready--; tag = true; at = to_claim }
    :: atomic { CHAOS && tag ->         /* connection or channel lost: the broker delivers again */
        tag = false; n_ready++;
        if
        :: at == to_ack || at == to_reject -> again()
        :: at == to_claim -> leave()
        :: else
        fi }
    :: atomic { CHAOS && at != idle ->  /* kill -9; the end of a drain without a database */
        if
        :: tag -> tag = false; n_ready++
        :: else
        fi;
        if
#ifdef PROGRESS
        :: t != 0 && !sent[t] && !ended[t] -> orphaned[t] = true
#endif
        :: else
        fi;
        again() }
    :: atomic { at == to_ack ->
        PROMISE(acked_before_commit, disk.status == completed || past_retention);
#ifndef RESPONSE
        PROMISE(acked_before_commit, disk.effects == 1 || past_retention);
#endif
        if
        :: tag -> n_copies--; tag = false
        :: else
        fi;
        PROMISE(message_lost, KEPT);
        again() }
    :: atomic { at == to_reject ->
        if
        :: tag -> n_copies--; tag = false
        :: else
        fi;
        PROMISE(message_lost, KEPT);
        again() }

    /* --- claim --- */
    :: atomic { at == to_claim && db.status == none ->
        t = OFFER;
        take(t);
        db.attempt = 1;
#ifdef RESPONSE
#ifndef BUG_ASYNCHRONOUS_CLAIMS
        flush();
#endif
#endif
        PROMISE(charged_without_fault, db.attempt == n_charged + 1);
        answered(claimed) }
    :: atomic { at == to_claim && FREE && CLAIMS_OWN ->
        take(t);
        flush();
        answered(claimed) }
    :: atomic { at == to_claim && FREE && (CLAIMS_EXPIRED || CLAIMS_FAILED || CLAIMS_WAITING) ->
        if
        :: db.status == processing ->
            PROMISE(window_cut_short, window[db.token] == STALE || IS_OWN);
            n_charged++
        :: else
        fi;
        finish(db.token);
        t = OFFER;
        take(t);
        db.attempt++;
        flush();
        PROMISE(charged_without_fault, db.attempt == n_charged + 1);
        PROMISE(one_attempt_too_many, db.attempt <= N_ATTEMPTS);
        answered(claimed) }
    :: atomic { at == to_claim && db.status == completed ->
        know(to_ack) }
    :: atomic { at == to_claim && db.status == dead ->
        PROMISE(rejected_before_letter, disk.status == dead && disk.letters != 0);
        know(to_reject) }
    :: atomic { at == to_claim && FREE && USED_UP ->
        know(to_bury_used_up) }
    :: atomic { CHAOS && at == to_claim -> /* a pause, a drain, max_hold */
        if
        :: tag -> tag = false; n_ready++
        :: else
        fi;
        leave() }

    /* --- the request --- */
    :: atomic { at == claimed && window[t] == LIVE ->
#ifdef RESPONSE
        may_send();
#endif
        sent[t] = true;
        at = out }
    :: atomic { at == claimed && (CHAOS || window[t] != LIVE) -> at = to_claim } /* a new window */
    :: atomic { at == claimed && CHAOS -> at = to_release }
    :: atomic { at == claimed -> at = to_bury } /* too old */
#ifdef RESPONSE
    :: atomic { at == out && acted[t] -> at = to_settle }
    :: atomic { CHAOS && at == out ->   /* the end of shutdown_grace */
        if
        :: tag -> tag = false; n_ready++
        :: else
        fi;
        again() }
#else
#ifdef BUG_TRUSTS_A_200
    :: atomic { at == out -> know(to_ack) }
#endif
    :: atomic { at == out -> at = watch_commit }
    :: atomic { at == out -> at = watch_accepted }
#endif
    :: atomic { CHAOS && at == out -> at = to_release } /* not now, unreachable, died; the end of shutdown_grace (transaction) */
    :: atomic { at == out -> at = to_fail }
    :: atomic { at == out -> at = to_bury } /* a permanent answer; the last attempt */
    /* the window's timer: revoke, if the row agrees that it is over */
    :: atomic { at == out && (window[t] != LIVE || (extended[t] && !told)) && !(MINE && window[t] != LIVE && !FREE) ->
        if
        :: MINE && window[t] == LIVE ->
#ifdef BUG_REVOKES_EXTENDED
            if
            :: FREE ->
                PROMISE(window_cut_short, window[t] != LIVE);
                db.status = failed; n_charged++; finish(t); flush(); again()
            :: else
            fi
#else
            told = true
#endif
        :: MINE && window[t] != LIVE ->
            PROMISE(ended_token_changed_row, !ended[t]);
            if
            :: db.status = failed; n_charged++
            :: CHAOS -> db.status = waiting; db.attempt-- /* p_give_back */
            fi;
            finish(t);
            flush();
            if
            :: again()
            :: CHAOS
            fi
        :: db.status == completed -> know(to_ack)
        :: db.status != completed && !MINE -> again() /* failed by the call before, whose answer was lost; lost; vanished */
        fi }

    /* --- transaction: 2xx and 202: the row is watched --- */
    :: atomic { (at == watch_commit || at == watch_accepted) && db.status == completed -> know(to_ack) }
    :: atomic { (at == watch_commit || at == watch_accepted) && db.status != completed && !MINE -> again() }
    :: atomic { at == watch_commit && MINE -> at = to_fail }
    :: atomic { at == watch_accepted && MINE && window[t] != LIVE -> only_expired = true; at = to_fail }
    :: atomic { CHAOS && (at == watch_commit || at == watch_accepted) -> at = to_release } /* the end of shutdown_grace */

    /* --- settle --- */
#ifdef BUG_ACKS_BEFORE_COMMIT
    :: atomic { at == to_settle -> know(to_ack) }
#ifndef RESPONSE
    :: atomic { (at == watch_commit || at == watch_accepted) && lock == t -> know(to_ack) }
#endif
#endif
    :: atomic { at == to_settle && FREE &&
#ifdef BUG_UNFENCED_COMPLETION
                db.status == processing ->
#else
                MINE ->
#endif
        PROMISE(ended_token_changed_row, !ended[t]);
        db.status = completed;
#ifndef BUG_ASYNCHRONOUS_COMPLETION
        finish(t);
        flush();
#endif
        answered(to_ack) }
    :: atomic { at == to_settle && db.status == completed -> know(to_ack) }
    :: atomic { at == to_settle && db.status != completed && !MINE -> again() }

    /* --- fail --- */
    :: atomic { at == to_fail && MINE && FREE && !(only_expired && window[t] == LIVE) ->
        PROMISE(ended_token_changed_row, !ended[t]);
        PROMISE(window_cut_short, !only_expired || window[t] != LIVE);
        db.status = failed; n_charged++; finish(t); flush();
        if
        :: again()
        :: CHAOS
        fi }
    :: atomic { at == to_fail && MINE && only_expired && window[t] == LIVE -> only_expired = false; at = watch_accepted }
    :: atomic { at == to_fail && db.status == completed -> know(to_ack) }
    :: atomic { at == to_fail && db.status != completed && !MINE -> again() }

    /* --- release --- */
    :: atomic { at == to_release && FREE &&
#ifdef BUG_RELEASE_AFTER_TAKEOVER
                db.status == processing ->
#else
                MINE ->
#endif
        PROMISE(ended_token_changed_row, !ended[t]);
        db.status = waiting;
        db.attempt--;
        finish(t);
        flush();
        if
        :: again()
        :: CHAOS
        :: CHAOS && tag -> tag = false; n_ready++; again() /* returned */
        fi }
    :: atomic { at == to_release && db.status == completed -> know(to_ack) }
    :: atomic { at == to_release && db.status != completed && !MINE -> again() }

    /* --- bury --- */
#ifdef BUG_LETTER_AFTER_REJECT
    :: atomic { (at == to_bury || at == to_bury_used_up) && tag ->
        PROMISE(rejected_before_letter, disk.status == dead && disk.letters != 0);
        tag = false; n_copies-- }
#endif
    :: atomic { at == to_bury && FREE && db.token == t && (db.status == processing || db.status == failed) ->
        PROMISE(ended_token_changed_row, !ended[t] || db.status == failed);
        bury();
        answered(to_reject) }
    :: atomic { at == to_bury_used_up && FREE && USED_UP ->
        bury();
        answered(to_reject) }
    :: atomic { (at == to_bury || at == to_bury_used_up) && db.status == completed -> know(to_ack) }
    :: atomic { (at == to_bury || at == to_bury_used_up) && db.status == dead ->
        PROMISE(rejected_before_letter, disk.status == dead && disk.letters != 0);
        know(to_reject) }
    :: atomic { at == to_bury && (db.status == none || db.status == waiting ||
                                  ((db.status == processing || db.status == failed) && db.token != t)) ->
        again() }
    :: atomic { at == to_bury_used_up && db.status != completed && db.status != dead && !USED_UP -> again() }
    od
}

#ifndef NO_REDRIVE
/* onceward dead redrive: a letter at a time; may be interrupted anywhere and run again. */
active proctype Redrive()
{
    byte step, letter;          /* step: 0, 1 the row, 2 the broker, 3 the letter */

end:
    do
    :: atomic { CHAOS && step == 0 && db.letters != 0 ->
        if
        :: db.letters & 1 -> letter = 1
        :: db.letters & 2 -> letter = 2
        fi;
#ifdef BUG_REDRIVE_PUBLISHES_FIRST
        step = 2
#else
        step = 1
#endif
        }
    :: atomic { CHAOS && step == 1 && FREE && (db.letters != 3 || db.status != dead) ->
        if
#ifndef BUG_REDRIVE_OF_COMPLETED
        :: db.status == completed ->
            db.letters = db.letters & (3 - letter);
            flush();
            step = 0; letter = 0
        :: db.status == dead ->
#else
        :: db.status == dead || db.status == completed ->
#endif
            finish(db.token);
            db.status = waiting;
            db.token = 0;               /* a random one, that nobody has */
            db.attempt = 0;
            n_charged = 0;
            flush();
            step++
        :: else -> step++               /* other, or purged */
        fi
#ifdef BUG_REDRIVE_PUBLISHES_FIRST
        ; if
        :: step == 2 -> step = 3
        :: else
        fi
#endif
        }
    :: atomic { step == 2 && n_copies < 2 -> n_ready++; n_copies++;
#ifdef BUG_REDRIVE_PUBLISHES_FIRST
        step = 1
#else
        step = 3
#endif
        }
    :: atomic { step == 3 ->
        db.letters = db.letters & (3 - letter);
        flush();
        step = 0; letter = 0 }
    :: atomic { step == 1 || step == 2 || (CHAOS && step != 0) -> step = 0; letter = 0 } /* locked; interrupted */
    od
}

#endif

#ifdef NO_GRACE
#define NEXT(w) STALE
#else
#define NEXT(w) (w + 1)
#endif
#define TICKS(x) (window[x] != STALE && !ended[x] && MAY_TICK(x))
#ifdef PROGRESS
#define MAY_TICK(x) (!calm || sent[x] || orphaned[x])
#else
#define MAY_TICK(x) true
#endif

/* The clock, the application, the sweep, the purge, the database's crash. */
active proctype World()
{
end:
    do
    :: atomic { TICKS(1) -> window[1] = NEXT(window[1]) }
    :: atomic { TICKS(2) -> window[2] = NEXT(window[2]) }
#ifdef PROGRESS
    :: atomic { !calm -> calm = true }
#endif

    /* --- the application --- */
#ifdef RESPONSE
    :: atomic { sent[1] && !acted[1] -> acted[1] = true }
    :: atomic { sent[2] && !acted[2] -> acted[2] = true }
#else
    /* complete(token), in a transaction */
#ifdef BUG_UNFENCED_COMPLETION
    :: atomic { FREE && db.status == processing && sent[1] -> lock = 1 }
    :: atomic { FREE && db.status == processing && sent[2] -> lock = 2 }
#endif
#ifdef BUG_TOKEN_COMPLETES_TWICE
    :: atomic { FREE && db.status == completed && sent[db.token] -> lock = db.token }
#endif
    :: atomic { FREE && db.status == processing && sent[db.token] -> lock = db.token }
    :: atomic { lock != 0 ->            /* its commit */
        db.effects++;
        PROMISE(effect_twice, db.effects == 1);
        PROMISE(ended_token_changed_row, !ended[lock]);
        PROMISE(lock_ignored, db.status == processing && db.token == lock);
        db.status = completed;
#ifndef BUG_ASYNCHRONOUS_COMPLETION
        finish(lock);
        flush();
#endif
        lock = 0 }
    :: atomic { CHAOS && lock != 0 -> lock = 0 } /* it rolls back, or dies */
#endif
    /* extend(token), once each */
    :: atomic { db.status == processing && FREE && sent[db.token] && !extended[db.token] ->
        extended[db.token] = true;
        window[db.token] = LIVE;
        flush() }

    /* --- the database --- */
    :: atomic { db.status == processing && FREE && window[db.token] == STALE -> /* sweep */
        db.status = failed;
        n_charged++;
        finish(db.token);
        flush() }
#ifdef PURGE
    :: atomic { CHAOS && db.status == completed && !past_retention ->
        past_retention = true;
        db.status = none;
        db.token = 0;
        db.attempt = 0;
        db.effects = 0;                 /* what happens from here on may happen again */
        n_charged = 0;
        was_completed = false }         /* commits asynchronously */
#endif
    :: atomic { disk.status != db.status || disk.token != db.token -> flush() } /* the WAL writer */
    :: atomic { CHAOS && (disk.status != db.status || disk.token != db.token || lock != 0) -> /* crash */
        lock = 0;
#ifndef RESPONSE
        if
        :: db.token != disk.token && hold[0] != db.token && hold[1] != db.token -> finish(db.token)
        :: else
        fi;
#endif
        db.status = disk.status;
        db.token = disk.token;
        db.attempt = disk.attempt;
        db.letters = disk.letters;
        db.effects = disk.effects
        }
    od
}

#ifdef PROGRESS
ltl progress { [] (calm -> <> (n_copies == 0)) }
#endif
