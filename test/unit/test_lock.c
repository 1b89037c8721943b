/* The lock of the state file: the kernel reports its owner, and it survives execve. */
#include "cmocka_all.h"

#include "onceward/base/fault.h"
#include "onceward/base/lock.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define KEEPER "TEST_LOCK_KEEPER"

static const char *program;
static char path[256];

static int setup(void **state)
{
    snprintf(path, sizeof(path), "/tmp/onceward-test-lock-%d", (int)getpid());
    unsetenv(KEEPER);
    return 0;
}

static int teardown(void **state)
{
    unlink(path);
    return 0;
}

/* A child that takes the lock, reports the result, and on request replaces itself by this program. */
struct child {
    pid_t pid;
    int say, hear;
};

static char heard(const struct child *c)
{
    char said = '?';

    while (read(c->hear, &said, 1) < 0 && errno == EINTR)
        ;
    return said;
}

static void *sleeper(void *p)
{
    for (;;)
        pause();
    return p;
}

static void child_main(int in, int out)
{
    char in_text[16], out_text[16], c;
    struct fault f = {0};
    struct lock l;
    int64_t pid;
    pthread_t thread;
    int answer = lock_take(&l, path, KEEPER, &pid, &f);

    if (write(out, answer == 0 ? "0" : answer == LOCK_TAKEN ? "1" : "-", 1) != 1 || read(in, &c, 1) != 1)
        _exit(1);
    pthread_create(&thread, NULL, sleeper, NULL); /* as while connections are being made */
    snprintf(in_text, sizeof(in_text), "%d", in);
    snprintf(out_text, sizeof(out_text), "%d", out);
    execl(program, program, "--again", path, in_text, out_text, NULL);
    _exit(1);
}

/* Runs the replacing program: does it find the descriptor, and can it lock it? It has no other descriptor of the
 * file. */
static int again_main(const char *at, int in, int out)
{
    const char *kept = getenv(KEEPER);
    struct fault f = {0};
    struct lock l;
    int64_t pid;
    char c;
    bool good = kept && lock_take(&l, at, KEEPER, &pid, &f) == 0 && l.fd == atoi(kept);

    return write(out, good ? "0" : "-", 1) == 1 && read(in, &c, 1) == 1 ? 0 : 1;
}

static struct child child_start(void)
{
    int to[2], from[2];

    assert_int_equal(pipe(to) | pipe(from), 0);
    struct child c = {.pid = fork(), .say = to[1], .hear = from[0]};

    if (!c.pid) {
        close(to[1]);
        close(from[0]);
        child_main(to[0], from[1]);
    }
    close(to[0]);
    close(from[1]);
    return c;
}

static void child_end(struct child *c)
{
    int status;

    kill(c->pid, SIGKILL);
    waitpid(c->pid, &status, 0);
    close(c->say);
    close(c->hear);
}

static void test_one_has_it_and_the_others_learn_who(void **state)
{
    struct fault f = {0};
    struct stat st;
    int64_t pid = -1;

    assert_int_equal(lock_holder(path, &pid, &f), 0); /* the file does not exist */
    struct child first = child_start();
    assert_int_equal(heard(&first), '0');
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_int_equal(lock_holder(path, &pid, &f), LOCK_TAKEN);
    assert_int_equal(pid, first.pid);
    struct child second = child_start();
    assert_int_equal(heard(&second), '1');
    struct lock l;
    pid = -1;
    assert_int_equal(lock_take(&l, path, KEEPER, &pid, &f), LOCK_TAKEN);
    assert_int_equal(pid, first.pid);
    assert_null(getenv(KEEPER));
    child_end(&second);
    assert_int_equal(lock_holder(path, &pid, &f), LOCK_TAKEN); /* reading the owner has not ended the lock */
    child_end(&first);
    assert_int_equal(lock_holder(path, &pid, &f), 0);
}

static void test_it_stays_when_another_program_is_started_in_its_place(void **state)
{
    struct fault f = {0};
    int64_t pid = -1;
    struct child c = child_start();

    assert_int_equal(heard(&c), '0');
    assert_int_equal(write(c.say, "x", 1), 1);
    assert_int_equal(heard(&c), '0');
    assert_int_equal(lock_holder(path, &pid, &f), LOCK_TAKEN);
    assert_int_equal(pid, c.pid);
    child_end(&c);
}

static void test_a_number_that_means_another_file_is_left_alone(void **state)
{
    struct fault f = {0};
    struct lock l;
    int64_t pid;
    char text[16];
    int other = open("/dev/null", O_RDWR);

    snprintf(text, sizeof(text), "%d", other);
    for (const char *const *t = (const char *const[]){text, "x", "-1", "0", "99999999999999999999", "", NULL};
         *t; t++) {
        setenv(KEEPER, *t, 1);
        assert_int_equal(lock_take(&l, path, KEEPER, &pid, &f), 0);
        assert_int_not_equal(l.fd, other);
        assert_int_equal(atoi(getenv(KEEPER)), l.fd);
        lock_release(&l);
        assert_int_equal(l.fd, -1);
    }
    assert_int_equal(fcntl(other, F_GETFD), 0);
    close(other);
}

static void test_what_is_no_file_of_ours_is_not_locked(void **state)
{
    struct fault f = {0};
    struct lock l;
    int64_t pid;
    char target[300];

    snprintf(target, sizeof(target), "%s.target", path);
    assert_int_equal(symlink(target, path), 0);
    assert_int_equal(lock_take(&l, path, NULL, &pid, &f), -1);
    assert_int_equal(lock_holder(path, &pid, &f), -1);
    assert_int_equal(access(target, F_OK), -1); /* no file was created through the link */
    unlink(path);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(lock_take(&l, path, NULL, &pid, &f), -1);
    assert_non_null(strstr(f.text, "not a file"));
    assert_int_equal(lock_holder(path, &pid, &f), -1);
}

static void test_a_file_that_was_removed_or_replaced_is_noticed(void **state)
{
    struct fault f = {0};
    struct lock l;
    int64_t pid;

    assert_int_equal(lock_take(&l, path, NULL, &pid, &f), 0);
    assert_true(lock_is_at(&l, path));
    unlink(path);
    assert_false(lock_is_at(&l, path));
    close(open(path, O_WRONLY | O_CREAT, 0600));
    assert_false(lock_is_at(&l, path));
    lock_release(&l);
}

int main(int argc, char **argv)
{
    static char self[4096];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_one_has_it_and_the_others_learn_who, setup, teardown),
        cmocka_unit_test_setup_teardown(test_it_stays_when_another_program_is_started_in_its_place, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_a_number_that_means_another_file_is_left_alone, setup, teardown),
        cmocka_unit_test_setup_teardown(test_what_is_no_file_of_ours_is_not_locked, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_file_that_was_removed_or_replaced_is_noticed, setup, teardown),
    };

    if (argc == 5 && !strcmp(argv[1], "--again"))
        return again_main(argv[2], atoi(argv[3]), atoi(argv[4]));
    program = realpath("/proc/self/exe", self);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
