/* onceward schema and onceward example: the form of a configuration, and of an application for batches. */

#include "command/example.h"

#include "command/common.h"
#include "onceward/base/buf.h"
#include "onceward/config/keys.h"

#include <getopt.h>
#include <string.h>

static int schema_usage(FILE *to, int status)
{
    fputs("usage: onceward schema\n"
          "Prints the JSON Schema (2020-12) of the configuration that this program reads.\n",
          to);
    return status;
}

int command_schema(int argc, char **argv)
{
    struct buf schema = {0};

    if (argc > 1) {
        bool help = argc == 2 && (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h"));

        return help ? schema_usage(stdout, STATUS_DONE) : schema_usage(stderr, STATUS_USAGE);
    }
    config_keys_schema(&schema);
    fputs(buf_text(&schema), stdout);
    buf_deinit(&schema);
    return STATUS_DONE;
}

/* --- example --- */

/* The keys that a new user needs to consider. Servers, names and path are those of the README's set-up.
 * `token_window` is left out: written down at its default, it makes `check` warn that shutdown_grace is
 * shorter. */
#define QUEUE "queues.<name>."

static const char head[] =
    "{\n"
    "  \"broker\": { \"url\": \"amqp://guest:guest@localhost:5672/\" },\n"
    "  \"database\": { \"url\": \"postgresql://payments_sidecar:change-me@localhost:5432/app\" },\n"
    "  \"queues\": {\n"
    "    \"payments\": {\n"
    "      \"forward\": {\n"
    "        \"url\": \"http://127.0.0.1:8080/payments\",\n"
    "        \"content_type\": \"application/json\"\n"
    "      },\n";
static const char tail[] = "      \"message_id\": [\"property:message_id\"],\n"
                           "      \"retention\": \"7d\"\n"
                           "    }\n"
                           "  }\n"
                           "}\n";
static const char *const paths[] = {
    "broker.url",       "database.url",     QUEUE "forward.url", QUEUE "forward.content_type",
    QUEUE "completion", QUEUE "message_id", QUEUE "retention"};

static void tell_key(void *ctx, const char *path, const char *fallback, const char *sentence)
{
    (void)ctx;
    (void)fallback;
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++)
        if (strcmp(path, paths[i]) == 0)
            fprintf(stderr, "%s\n    %s.\n", path, sentence);
}

static int example_usage(FILE *to, int status)
{
    fputs(
        "usage: onceward example [--completion response|transaction]\n"
        "       onceward example --batch [--completion response|transaction]\n"
        "Prints a small configuration to start with, and on standard error the meaning of each of its keys.\n"
        "  onceward example >onceward.json    # put in your servers, then: onceward check --config onceward.json --connect\n"
        "`onceward explain --keys` lists the other keys. Applications in 12 languages are in deploy/examples of the sources.\n"
        "  --completion NAME  the value of the key `completion`; default: response, with --batch: transaction\n"
        "  --batch            print an application in Python that takes several messages in a request:\n"
        "                     onceward example --batch >application.py\n",
        to);
    return status;
}

/* The configuration for it goes to standard error, so that the application can be written to a file. */
static int print_application(bool transaction)
{
    fputs(transaction ? example_transaction : example_response, stdout);
    fflush(stdout);
    fprintf(
        stderr,
        "To send the application several messages in a request, set for its queue:\n"
        "    \"completion\": \"%s\",\n"
        "    \"forward\": { \"url\": \"http://127.0.0.1:8080/payments%s\", \"batch\": { \"max_messages\": 100 } }\n"
        "%s\n"
        "`onceward try` tests it.\n",
        transaction ? "transaction" : "response", transaction ? "/valid" : "",
        transaction
            ? "/payments/all does the work of all messages of a request or of none; /payments/valid names the invalid ones."
            : "The application names invalid messages in its answer. Its table: CREATE TABLE charges (message_id text "
              "PRIMARY KEY, order_id text NOT NULL, cents integer NOT NULL);");
    return STATUS_DONE;
}

int command_example(int argc, char **argv)
{
    static const struct option options[] = {{"completion", required_argument, NULL, 'c'},
                                            {"batch", no_argument, NULL, 'b'},
                                            {"help", no_argument, NULL, 'h'},
                                            {0}};
    const char *completion = NULL;
    bool batch = false;
    int option;

    while ((option = getopt_long(argc, argv, "h", options, NULL)) != -1) {
        if (option == 'h')
            return example_usage(stdout, STATUS_DONE);
        if (option == 'b')
            batch = true;
        else if (option == 'c')
            completion = optarg;
        else
            return command_see_help(argv[0]);
    }
    if (!completion)
        completion = batch ? "transaction" : "response";
    if (strcmp(completion, "response") != 0 && strcmp(completion, "transaction") != 0) {
        fprintf(stderr, "example: --completion \"%s\" is neither response nor transaction\n", completion);
        return command_see_help(argv[0]);
    }
    if (optind < argc)
        return command_see_help(argv[0]);
    if (batch)
        return print_application(strcmp(completion, "transaction") == 0);
    printf("%s      \"completion\": \"%s\",\n%s", head, completion, tail);
    fflush(stdout);
    config_keys_each(tell_key, NULL);
    return STATUS_DONE;
}
