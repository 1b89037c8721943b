/* onceward completion: prints a shell's completion of commands and options, made from the tables of the subcommands. */

#include "command/common.h"
#include "command/help.h"

#include <string.h>

enum value { VALUE_NONE, VALUE_WORDS, VALUE_FILE, VALUE_OTHER };

/* Kind of value in the word behind the option. */
static enum value value_of(const struct command_option *row)
{
    if (row->kind == OPTION_FLAG || row->kind == OPTION_MAYBE)
        return VALUE_NONE;
    if (help_word(row, 0).len)
        return VALUE_WORDS;
    return row->kind == OPTION_FILE || row->kind == OPTION_CONFIG ? VALUE_FILE : VALUE_OTHER;
}

/* Prints the words that the row accepts, each behind a blank. */
static void print_words(const struct command_option *row)
{
    struct slice word;

    for (size_t i = 0; (word = help_word(row, i)).len; i++)
        printf(" %.*s", (int)word.len, word.data);
}

/* Prints the words that may follow the command, each behind a blank. */
static void print_operands(const struct command *c)
{
    options_each (row, c)
        if (row->kind == OPTION_OPERAND)
            print_words(row);
}

/* Does an earlier command have the option? */
static bool is_known(size_t n_before, const char *name)
{
    for (size_t i = 0; i < n_before; i++)
        options_each (row, commands[i])
            if (row->name && strcmp(row->name, name) == 0)
                return true;
    return false;
}

/* Prints the options of that kind of value, as a pattern of `case`. */
static void print_values(enum value value)
{
    printf("    ");
    for (size_t i = 0; i < n_commands; i++)
        options_each (row, commands[i])
            if (row->name && value_of(row) == value && !is_known(i, row->name))
                printf("--%s | ", row->name);
}

static void print_choices(void)
{
    for (size_t i = 0; i < n_commands; i++)
        options_each (row, commands[i])
            if (row->name && value_of(row) == VALUE_WORDS) {
                printf("    --%s) COMPREPLY=($(compgen -W '", row->name);
                print_words(row);
                puts("' -- \"$current\")); return ;;");
            }
}

static void print_names(void)
{
    for (size_t i = 0; i < n_commands; i++)
        printf("%s ", commands[i]->name);
}

static void print_bash(void)
{
    puts("# bash completion for onceward; made by `onceward completion bash`\n"
         "_onceward() {\n"
         "    local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]} words=\n"
         "    COMPREPLY=()\n"
         "    case $previous in");
    print_choices();
    print_values(VALUE_FILE);
    puts("-) COMPREPLY=($(compgen -f -- \"$current\")); return ;;");
    print_values(VALUE_OTHER);
    puts("-) return ;;\n"
         "    esac\n"
         "    if [ \"$COMP_CWORD\" -eq 1 ]; then");
    printf("        words='");
    print_names();
    puts("help --help --version'\n"
         "    else\n"
         "        case ${COMP_WORDS[1]} in");
    for (size_t i = 0; i < n_commands; i++) {
        printf("        %s) words='", commands[i]->name);
        print_operands(commands[i]);
        options_each (row, commands[i])
            if (row->name)
                printf(" --%s", row->name);
        puts(" --help' ;;");
    }
    printf("        help) words='");
    print_names();
    puts("' ;;\n"
         "        esac\n"
         "    fi\n"
         "    COMPREPLY=($(compgen -W \"$words\" -- \"$current\"))\n"
         "}\n"
         "complete -o filenames -F _onceward onceward");
}

static void print_zsh(void)
{
    puts("#compdef onceward\n"
         "# zsh completion for onceward; made by `onceward completion zsh`\n"
         "_onceward() {\n"
         "    local -a commands\n"
         "    commands=(");
    for (size_t i = 0; i < n_commands; i++)
        printf("        '%s:%s'\n", commands[i]->name, commands[i]->does);
    puts("    )\n"
         "    if (( CURRENT == 2 )); then\n"
         "        _describe command commands\n"
         "        return\n"
         "    fi\n"
         "    case $words[2] in");
    for (size_t i = 0; i < n_commands; i++) {
        printf("    %s) _arguments '*::word:(", commands[i]->name);
        print_operands(commands[i]);
        printf(")'");
        options_each (row, commands[i]) {
            static const char *const values[] = {[VALUE_NONE] = "",
                                                 [VALUE_FILE] = "=:file:_files",
                                                 [VALUE_OTHER] = "=:value:",
                                                 [VALUE_WORDS] = "=:value:("};
            enum value value = value_of(row);

            if (!row->name)
                continue;
            printf(" '--%s%s", row->name, values[value]);
            if (value == VALUE_WORDS)
                print_words(row);
            printf(value == VALUE_WORDS ? ")'" : "'");
        }
        puts(" '--help' ;;");
    }
    puts("    esac\n"
         "}\n"
         "if [ \"$funcstack[1]\" = _onceward ]; then _onceward \"$@\"; else compdef _onceward onceward; fi");
}

static void print_fish(void)
{
    puts("# fish completion for onceward; made by `onceward completion fish`\n"
         "complete -c onceward -f");
    for (size_t i = 0; i < n_commands; i++) {
        const char *name = commands[i]->name;

        printf("complete -c onceward -n __fish_use_subcommand -a %s -d '%s'\n", name, commands[i]->does);
        options_each (row, commands[i]) {
            static const char *const values[] = {[VALUE_NONE] = "",
                                                 [VALUE_FILE] = " -r -F",
                                                 [VALUE_OTHER] = " -x",
                                                 [VALUE_WORDS] = " -x -a '"};
            enum value value = value_of(row);

            if (!row->name && value != VALUE_WORDS)
                continue;
            printf("complete -c onceward -n '__fish_seen_subcommand_from %s'", name);
            if (row->name)
                printf(" -l %s", row->name);
            fputs(row->name ? values[value] : " -a '", stdout);
            if (value == VALUE_WORDS)
                print_words(row);
            puts(value == VALUE_WORDS ? "'" : "");
        }
    }
}

struct completion_options {
    const char *shell;
};

static int completion_run(void *options)
{
    const struct completion_options *o = options;

    if (*o->shell == 'b')
        print_bash();
    else if (*o->shell == 'z')
        print_zsh();
    else
        print_fish();
    return STATUS_DONE;
}

#define OPTIONS struct completion_options

static const struct command_option completion_options[] = {
    {NULL, "bash|zsh|fish", NULL, OPTION(OPERAND, shell), OPTION_REQUIRED},
    {0},
};

const struct command completion_command = {
    .name = "completion",
    .does = "print a script that completes commands in a shell",
    .about = "Prints a script that completes commands and options in a shell. To use it in this session:\n"
             "bash: source <(onceward completion bash)\n"
             "zsh: source <(onceward completion zsh)\n"
             "fish: onceward completion fish | source",
    .options = completion_options,
    .size = sizeof(struct completion_options),
    .run = completion_run,
};
