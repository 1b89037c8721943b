/* onceward completion: prints a shell's completion of commands and options, made from the table of
 * subcommands. */

#include "command/common.h"

#include <stdbool.h>
#include <string.h>

static const char help[] =
    "usage: onceward completion bash|zsh|fish\n"
    "Prints the completion of commands and options for a shell. To use it in this session:\n"
    "  bash  source <(onceward completion bash)\n"
    "  zsh   source <(onceward completion zsh)\n"
    "  fish  onceward completion fish | source\n";

/* A word of a list: "config=" is an option with a value. */
struct word {
    const char *text;
    int len; /* without = */
    bool has_value;
};

/* The next word of *list, or one of length 0. */
static struct word next_word(const char **list)
{
    const char *start = *list ? *list + strspn(*list, " ") : "";
    int len = (int)strcspn(start, " ");

    *list = start + len;
    if (len && start[len - 1] == '=')
        return (struct word){start, len - 1, true};
    return (struct word){start, len, false};
}

/* Is the option's value a file? */
static bool is_file(struct word w)
{
    static const char *const files[] = {"config", "state", "message", "output"};

    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        if (w.len == (int)strlen(files[i]) && !strncmp(w.text, files[i], (size_t)w.len))
            return true;
    return false;
}

static void print_options(const struct subcommand *c, const char *before)
{
    const char *options = c->options;

    for (struct word w; (w = next_word(&options)).len;)
        printf("%s--%.*s", before, w.len, w.text);
    printf("%s--help", before);
}

/* Is this the first command with the option? */
static bool is_new(size_t n_before, struct word wanted)
{
    for (size_t i = 0; i < n_before; i++) {
        const char *options = commands[i].options;

        for (struct word w; (w = next_word(&options)).len;)
            if (w.len == wanted.len && !strncmp(w.text, wanted.text, (size_t)w.len))
                return false;
    }
    return true;
}

/* Prints the options whose values are files, or those with other values, as a pattern of `case`. */
static void print_values(bool files)
{
    printf("    ");
    for (size_t i = 0; i < n_commands; i++) {
        const char *options = commands[i].options;

        for (struct word w; (w = next_word(&options)).len;)
            if (w.has_value && is_file(w) == files && strncmp(w.text, "completion", 10) != 0 && is_new(i, w))
                printf("--%.*s | ", w.len, w.text);
    }
}

static void print_bash(void)
{
    puts("# bash completion for onceward; made by `onceward completion bash`\n"
         "_onceward() {\n"
         "    local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]} words=\n"
         "    COMPREPLY=()\n"
         "    case $previous in\n"
         "    --completion) COMPREPLY=($(compgen -W 'response transaction' -- \"$current\")); return ;;");
    print_values(true);
    puts("-) COMPREPLY=($(compgen -f -- \"$current\")); return ;;");
    print_values(false);
    puts("-) return ;;\n"
         "    esac\n"
         "    if [ \"$COMP_CWORD\" -eq 1 ]; then");
    printf("        words='");
    for (size_t i = 0; i < n_commands; i++)
        printf("%s ", commands[i].name);
    puts("help --help --version'\n"
         "    else\n"
         "        case ${COMP_WORDS[1]} in");
    for (size_t i = 0; i < n_commands; i++) {
        printf("        %s) words='%s%s", commands[i].name, commands[i].words ? commands[i].words : "",
               commands[i].words ? " " : "");
        print_options(&commands[i], " ");
        puts("' ;;");
    }
    printf("        help) words='");
    for (size_t i = 0; i < n_commands; i++)
        printf("%s ", commands[i].name);
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
        printf("        '%s:%s'\n", commands[i].name, commands[i].does);
    puts("    )\n"
         "    if (( CURRENT == 2 )); then\n"
         "        _describe command commands\n"
         "        return\n"
         "    fi\n"
         "    case $words[2] in");
    for (size_t i = 0; i < n_commands; i++) {
        const char *options = commands[i].options;

        printf("    %s) _arguments '*::word:(%s)'", commands[i].name,
               commands[i].words ? commands[i].words : "");
        for (struct word w; (w = next_word(&options)).len;)
            printf(" '--%.*s%s'", w.len, w.text,
                   !w.has_value ? ""
                   : is_file(w) ? "=:file:_files"
                                : "=:value:");
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
        const char *name = commands[i].name, *options = commands[i].options, *words = commands[i].words;

        printf("complete -c onceward -n __fish_use_subcommand -a %s -d '%s'\n", name, commands[i].does);
        for (struct word w; (w = next_word(&options)).len;)
            printf("complete -c onceward -n '__fish_seen_subcommand_from %s' -l %.*s%s\n", name, w.len,
                   w.text,
                   !w.has_value ? ""
                   : is_file(w) ? " -r -F"
                                : " -x");
        for (struct word w; (w = next_word(&words)).len;)
            printf("complete -c onceward -n '__fish_seen_subcommand_from %s' -a %.*s\n", name, w.len, w.text);
    }
}

int command_completion(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*print)(void);
    } shells[] = {{"bash", print_bash}, {"zsh", print_zsh}, {"fish", print_fish}};

    for (size_t i = 0; argc == 2 && i < sizeof shells / sizeof *shells; i++) {
        if (strcmp(argv[1], shells[i].name) != 0)
            continue;
        shells[i].print();
        return STATUS_DONE;
    }
    bool is_help = argc == 2 && (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h"));
    fputs(help, is_help ? stdout : stderr);
    return is_help ? STATUS_DONE : STATUS_USAGE;
}
