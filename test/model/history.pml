/* The compact history, for spin: one message id, two sidecars that claim copies of it, the application, the housekeeper, the database.
 * test/model/run checks it as it is, and with each deliberate mistake (BUG_…), which must break a promise.
 *
 *   -DFORGET      the id may be forgotten once, past the retention: its row is purged, or its entry in the history expires
 *   -DCRASH       the database may crash; without it every commit reaches the disk
 *   -DBUG_…       a deliberate mistake
 *
 * inbox.pml treats a claim as one step. Here each part of it is a step, since the question is what happens between them:
 *
 *                  the clock   snapshot   probe of    probe of      INSERT        the clock   commit
 *                  is read     is taken   the row     the history                 again
 *   claim.at    idle ──▶ CLOCKED ──▶ SNAPPED ──▶ PROBED ──▶ LOOKED ──▶ INSERTED ──▶ CHECKED ──▶ idle
 *                                       │           │          └─▶ CLOCKED (another claim has inserted the id)
 *                                       └───────────┴─▶ ASKING (the last statement, in a snapshot of its own) ──▶ idle
 *
 * Both probes see the snapshot. The INSERT sees the newest committed rows, and waits behind an uncommitted insert. A claim may be
 * frozen between any two steps for any time.
 *
 * Time: `an hour passes` is one step. It makes a completed row old enough to be moved (its completion is dated when complete() is
 * called, not when it commits), and every claim between its two looks at the clock too slow. So a claim that is not too slow has no
 * hour between them, and a row that is moved has one since its completion.
 *
 * A token is the number of the sidecar that claimed. An older token of the same sidecar is refused by a comparison of 16 bytes.
 * Windows may end at any moment. Left out: retries, dead letters and redrive, which inbox.pml has: none of them touches a completed row. */

#define N 2

/* Promises: false constants, whose name is in the message of the violated assertion. */
hidden byte effect_twice, acked_before_commit, endless_claim, moved_unfinished, entry_without_effect;
#define PROMISE(name, condition) assert(name || (condition))

mtype = { none, processing, completed };
mtype = { idle, clocked, snapped, probed, looked, inserted, checked, asking };

typedef Tables {
    mtype status = none;                /* the row of onceward.inbox */
    byte token;
    bit entry;                          /* the entry in onceward.history */
    byte effects;                       /* what the application committed */
};

Tables db, disk;                        /* as committed, and as far as the WAL is flushed */
byte inserting;                         /* the sidecar whose insert of the row is not committed; 0: none */
byte lock;                              /* the token whose transaction has called complete(); 0: none */
bit old, entry_old;                     /* an hour has passed since */
bit sent[N + 1];                        /* the application knows the token */
bit slow[N];                            /* an hour has passed between the claim's two looks at the clock */
mtype at[N] = idle;
bit forgotten;

inline flush()
{
    disk.status = db.status;
    disk.token = db.token;
    disk.entry = db.entry;
    disk.effects = db.effects
}

inline committed()                      /* a commit that need not wait for the disk */
{
#ifndef CRASH
    flush();
#endif
    skip
}

#ifdef BUG_NO_TIME_CHECK
#define TOO_SLOW false
#else
#define TOO_SLOW slow[_pid]
#endif

active [N] proctype Claim()
{
    bit saw_row, saw_entry;

end:
    do
    :: atomic { at[_pid] == idle ->
        slow[_pid] = false;
#ifdef BUG_LOOKUP_IN_AN_EARLIER_STATEMENT
        saw_entry = db.entry;
#endif
        at[_pid] = clocked }
    :: atomic { at[_pid] == clocked ->
        saw_row = (db.status != none);
#ifndef BUG_LOOKUP_IN_AN_EARLIER_STATEMENT
        saw_entry = db.entry;
#endif
#ifdef BUG_CLOCK_BEHIND_THE_SNAPSHOT
        at[_pid] = snapped }
    :: atomic { at[_pid] == snapped && slow[_pid] -> slow[_pid] = false }
    :: atomic { at[_pid] == snapped -> skip;
#endif
        at[_pid] = snapped }
    :: atomic { at[_pid] == snapped -> at[_pid] = (saw_row -> asking : probed) }
    :: atomic { at[_pid] == probed -> at[_pid] = (saw_entry -> asking : looked) }
#ifdef BUG_CHECK_BEFORE_INSERT
    :: atomic { at[_pid] == looked && slow[_pid] -> at[_pid] = idle }
#endif
    :: atomic { at[_pid] == looked && inserting == 0 ->
#ifdef BUG_CHECK_BEFORE_INSERT
        slow[_pid] = false;
#endif
        if
        :: db.status != none -> at[_pid] = clocked /* a conflict: again, in a new snapshot */
        :: else -> inserting = _pid + 1; at[_pid] = inserted
        fi }
    :: atomic { at[_pid] == looked && inserting != 0 -> at[_pid] = idle } /* lock_timeout */
    :: atomic { at[_pid] == inserted && TOO_SLOW -> inserting = 0; at[_pid] = idle } /* 40001 */
    :: atomic { at[_pid] == inserted && !TOO_SLOW -> at[_pid] = checked }
    :: atomic { at[_pid] == checked ->
        inserting = 0;
        db.status = processing;
        db.token = _pid + 1;
        old = false;
        committed();
        sent[_pid + 1] = true;
        at[_pid] = idle }

    /* The statements behind the INSERT: a takeover, or why not. */
    :: atomic { at[_pid] == asking && db.status == processing && lock == 0 -> /* the window is over */
        db.token = _pid + 1;
        flush();
        sent[_pid + 1] = true;
        at[_pid] = idle }
    :: atomic { at[_pid] == asking && db.status == processing -> at[_pid] = idle } /* held, locked */
    :: atomic { at[_pid] == asking && db.status == completed ->
        PROMISE(acked_before_commit, disk.effects == 1 || forgotten);
        at[_pid] = idle }
    :: atomic { at[_pid] == asking && db.status == none ->
#ifdef BUG_ANSWER_WITHOUT_LOOKUP
        PROMISE(endless_claim, !db.entry);
#endif
        if
        :: db.entry -> PROMISE(acked_before_commit, disk.effects == 1 || forgotten)
        :: else -> skip                 /* vanished: purged since, or an insert that was rolled back. It is claimed again */
        fi;
        at[_pid] = idle }
    od
}

#ifdef BUG_MOVES_YOUNG_ROWS
#define OLD true
#else
#define OLD old
#endif
#ifdef BUG_SECOND_LOOK_WITHOUT_AGE      /* the row that was found was purged, and a new one has its place */
#define STILL_OLD true
#else
#define STILL_OLD OLD
#endif

/* The housekeeper: it finds rows in one statement, and moves them in another. */
active proctype Mover()
{
    bit found;

end:
    do
    :: atomic { !found && db.status == completed && OLD -> found = true }
#ifdef BUG_ENTRY_IN_THE_NEXT_TRANSACTION
    :: atomic { found && db.status == completed && STILL_OLD -> db.status = none; db.token = 0; committed() }
    :: atomic { found && db.status == none && db.effects == 1 -> db.entry = true; entry_old = false; committed(); found = false }
    :: atomic { found && db.status != none -> found = false }
    :: atomic { found && db.effects != 1 -> found = false }
#else
    :: atomic { found ->
        if
#ifdef BUG_MOVES_WITHOUT_A_SECOND_LOOK
        :: db.status != none ->
#else
        :: db.status == completed && STILL_OLD ->
#endif
            PROMISE(moved_unfinished, db.status == completed);
            db.status = none;
            db.token = 0;
            db.entry = true;
            entry_old = false;
            committed()
        :: else ->
#ifdef BUG_INSERTS_WHAT_IT_FOUND
            db.entry = true;
            committed();
#endif
            skip
        fi;
        PROMISE(entry_without_effect, !db.entry || db.effects == 1);
        found = false }
#endif
    od
}

active proctype World()
{
end:
    do
    :: atomic { !(old && slow[0] && slow[1] && entry_old) -> /* an hour passes */
        old = (lock != 0 || db.status == completed);
        entry_old = db.entry;
        slow[0] = true;
        slow[1] = true }

    /* complete(token) in the application's transaction, and the end of that */
    :: atomic { lock == 0 && db.status == processing && sent[db.token] -> lock = db.token; old = false }
    :: atomic { lock != 0 ->
        lock = 0;
        db.status = completed;
        db.effects++;
        PROMISE(effect_twice, db.effects == 1);
        flush() }
    :: atomic { lock != 0 -> lock = 0 }

#ifdef FORGET
    :: atomic { !forgotten && ((db.status == completed && old) || (db.status == none && db.entry && entry_old)) ->
        forgotten = true;
        db.status = none;
        db.token = 0;
        db.entry = false;
        db.effects = 0;
        committed() }
#endif
#ifdef CRASH
    :: atomic { disk.status != db.status || disk.token != db.token || disk.entry != db.entry || disk.effects != db.effects -> flush() }
    :: atomic { disk.status != db.status || disk.token != db.token || disk.entry != db.entry || disk.effects != db.effects ||
                lock != 0 || at[0] != idle || at[1] != idle ->
        db.status = disk.status;
        db.token = disk.token;
        db.entry = disk.entry;
        db.effects = disk.effects;
        lock = 0;
        inserting = 0;
        at[0] = idle;
        at[1] = idle }
#endif
    od
}
