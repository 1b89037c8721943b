/* onceward top: the part of `status` about replicas, live on a terminal. The terminal is always restored. */

#include "command/top_view.h"

#include "command/common.h"
#include "onceward/base/clock.h"
#include "onceward/base/table.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

enum { EVERY_MS = 2000, AGAIN_MS = 200 };

struct top {
    struct config *config;
    struct admin *admin; /* NULL: not connected */
    struct fleet fleet;
    char fault[300];
    bool is_live;
    struct termios before;
};

static volatile sig_atomic_t ended, resized, stopped;

static void on_end(int number)
{
    (void)number;
    ended = 1;
}

static void on_resize(int number)
{
    (void)number;
    resized = 1;
}

static void on_stop(int number)
{
    (void)number;
    stopped = 1;
}

/* --- the terminal --- */

static void terminal_take(struct top *t)
{
    struct sigaction end = {.sa_handler = on_end}, resize = {.sa_handler = on_resize},
                     stop = {.sa_handler = on_stop};
    struct termios raw;

    sigaction(SIGINT, &end, NULL);
    sigaction(SIGTERM, &end, NULL);
    sigaction(SIGHUP, &end, NULL);
    sigaction(SIGWINCH, &resize, NULL);
    sigaction(SIGTSTP, &stop, NULL);
    if (isatty(STDIN_FILENO) && tcgetattr(STDIN_FILENO, &t->before) == 0) {
        raw = t->before;
        raw.c_lflag &= (tcflag_t) ~(ICANON | ECHO);
        raw.c_cc[VMIN] = 0;
        raw.c_cc[VTIME] = 0;
        tcsetattr(STDIN_FILENO, TCSANOW, &raw);
    }
    fputs("\x1b[?1049h\x1b[?25l", stdout); /* alternate screen, no cursor */
    fflush(stdout);
}

static void terminal_give_back(const struct top *t)
{
    fputs("\x1b[?25h\x1b[?1049l", stdout);
    fflush(stdout);
    if (isatty(STDIN_FILENO))
        tcsetattr(STDIN_FILENO, TCSANOW, &t->before);
}

static bool wants_colour(void)
{
    const char *no = getenv("NO_COLOR"), *kind = getenv("TERM");

    return !(no && *no) && kind && *kind && strcmp(kind, "dumb") != 0;
}

/* --- figures --- */

/* Reads new figures; keeps the old ones on failure. */
static void look(struct top *t)
{
    struct fault f = {0};
    struct fleet newer;

    t->fault[0] = '\0';
    if (!t->admin && admin_open(&t->config->database, ADMIN_READS, &t->admin, &f)) {
        t->admin = NULL;
    } else if (admin_check_schema(t->admin, &f) || command_use_formers(t->config, t->admin, NULL, &f) ||
               admin_fleet(t->admin, t->config, &newer, &f)) {
        admin_close(t->admin);
        t->admin = NULL;
    } else {
        fleet_deinit(&t->fleet);
        t->fleet = newer;
        return;
    }
    struct buf line = {0};

    buf_add_text(&line, "no newer figures: ");
    text_add_safe(&line, slice_of(f.text));
    snprintf(t->fault, sizeof(t->fault), "%s", buf_text(&line));
    buf_deinit(&line);
}

static void draw(const struct top *t)
{
    struct winsize size = {0};
    struct buf text = {0};
    char clock[16];
    time_t now = time(NULL);
    struct tm utc;
    struct top_screen s = {.where = t->admin ? admin_where(t->admin) : "-",
                           .clock = clock,
                           .colour = t->is_live && wants_colour(),
                           .fault = t->fault[0] ? t->fault : NULL};

    strftime(clock, sizeof(clock), "%H:%M:%S UTC", gmtime_r(&now, &utc));
    if (t->is_live && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col) {
        s.width = size.ws_col;
        s.height = size.ws_row > 1 ? size.ws_row - 1 : 1;
    }
    top_draw(&text, &s, &t->fleet);
    if (t->is_live)
        fputs("\x1b[H", stdout);
    for (const char *at = buf_text(&text), *end; *at; at = end + 1) {
        end = strchr(at, '\n');
        printf("%.*s%s", (int)(end - at), at, t->is_live ? "\x1b[K\r\n" : "\n");
    }
    if (t->is_live)
        fputs("\x1b[J", stdout);
    fflush(stdout);
    buf_deinit(&text);
}

/* Gives the shell its terminal back on Ctrl-Z, and takes it again afterwards. */
static void stop_a_while(struct top *t)
{
    stopped = 0;
    terminal_give_back(t);
    raise(SIGSTOP);
    terminal_take(t);
    draw(t);
}

/* Waits for the next refresh. True: the user ends the program. */
static bool rest(struct top *t)
{
    int64_t until = clock_ms() + EVERY_MS;

    while (!ended && clock_ms() < until) {
        struct pollfd in = {.fd = isatty(STDIN_FILENO) ? STDIN_FILENO : -1, .events = POLLIN};
        char key;

        if (poll(&in, 1, AGAIN_MS) > 0) {
            ssize_t n = read(STDIN_FILENO, &key, 1);

            if (n == 0 || (n < 0 && errno != EINTR && errno != EAGAIN) ||
                (n > 0 && (key == 'q' || key == 'Q')))
                return true;
        }
        if (stopped)
            stop_a_while(t);
        if (resized) {
            resized = 0;
            draw(t);
        }
    }
    return ended;
}

struct top_options {
    const char *config;
    bool once;
};

static int top_run(void *options)
{
    const struct top_options *o = options;
    struct top t = {.config = command_config(o->config)};
    int status = STATUS_DONE;

    if (!t.config)
        return STATUS_USAGE;
    t.is_live = !o->once && isatty(STDOUT_FILENO);
    look(&t);
    if (t.is_live && !t.fault[0]) {
        terminal_take(&t);
        do
            draw(&t);
        while (!rest(&t) && (look(&t), true));
        terminal_give_back(&t);
    } else if (t.fault[0]) {
        fprintf(stderr, "onceward: %s\n", t.fault);
        status = STATUS_FAILED;
    } else {
        draw(&t);
    }
    fleet_deinit(&t.fleet);
    command_close(t.config, t.admin);
    return status;
}

#define OPTIONS struct top_options

static const struct command_option top_options[] = {
    CONFIG_OPTION(.rules = OPTION_REQUIRED),
    {"once", NULL,
     "print one table without colours and exit; this is the default when standard output is not a terminal",
     OPTION(FLAG, once)},
    {0},
};

const struct command top_command = {
    .name = "top",
    .does = "show each queue of each replica, live",
    .about =
        "Shows each queue of each replica, live, until you press q: messages per second (received, completed, failed), requests "
        "in flight and their limit, messages held here and waiting in the queue (depth), the application's latency, the "
        "end-to-end latency (median and 99th percentile), and why a queue is paused. The replicas write these figures every "
        "five seconds.\n"
        "OUT/LIMIT: requests in flight, and how many may be in flight now. ACCEPTED: messages answered 202, not completed yet. "
        "FORWARD: time from a request to its answer. TOTAL: time from a delivery to its committed completion. DEAD: messages "
        "given up since the replica started.",
    .after = "NO_COLOR and a dumb terminal switch colours off.",
    .options = top_options,
    .size = sizeof(struct top_options),
    .run = top_run,
};
