/* Fuzzes moert_hosts of launch/environment, which reads hosts files. One shell reads all inputs. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/fuzz/fuzz_files.h"

/* For each path that it reads, the script prints the lines of moert_hosts and then ". STATUS". */
static const char script[] = ". launch/environment\n"
                             "while IFS= read -r path; do\n"
                             "    moert_hosts \"$path\"\n"
                             "    echo \". $?\"\n"
                             "done\n";

static FILE *to, *from;

/* Lets reads continue after libFuzzer's timer signal, which must not interrupt a wait for the
 * shell. */
static void restart_reads(void) {
    struct sigaction action;
    if (sigaction(SIGALRM, NULL, &action) != 0)
        fuzz_fail("no handler of the timer");
    action.sa_flags |= SA_RESTART;
    sigaction(SIGALRM, &action, NULL);
}

static void start_shell(void) {
    int down[2], up[2];
    restart_reads();
    if (pipe(down) != 0 || pipe(up) != 0)
        fuzz_fail("no pipe");
    const pid_t child = fork();
    if (child == 0) {
        dup2(down[0], STDIN_FILENO);
        dup2(up[1], STDOUT_FILENO);
        close(down[1]);
        close(up[0]);
        execlp("bash", "bash", "-c", script, (char *)NULL);
        _exit(127);
    }
    close(down[0]);
    close(up[1]);
    to = fdopen(down[1], "w");
    from = fdopen(up[0], "r");
    if (child < 0 || to == NULL || from == NULL)
        fuzz_fail("no shell");
}

/* Whether a line is "NAME SLOTS". */
static int is_host(const char *line) {
    const char *space = strchr(line, ' ');
    char *end;
    if (space == NULL || space == line || space[1] < '1' || space[1] > '9')
        return 0;
    const long slots = strtol(space + 1, &end, 10);
    return slots <= 999999 && strcmp(end, "\n") == 0;
}

moert_status read_hosts(void) {
    static char *line;
    static size_t room;
    size_t hosts = 0, others = 0;
    char message[512] = "";
    if (to == NULL)
        start_shell();
    fprintf(to, "%s\n", fuzz_path);
    fflush(to);
    for (;;) {
        if (getline(&line, &room, from) <= 0)
            fuzz_fail("the shell has ended");
        if (strcmp(line, ". 0\n") == 0 || strcmp(line, ". 1\n") == 0)
            break;
        hosts += is_host(line) != 0;
        if (!is_host(line) && others++ == 0)
            snprintf(message, sizeof message, "%s", line);
    }
    if (line[2] == '0' && (hosts == 0 || others > 0))
        fuzz_fail("not a list of hosts: %s", message);
    if (line[2] == '0')
        return MOERT_OK;
    if (hosts > 0)
        fuzz_fail("a refusal lists hosts");
    return MOERT_FAIL(ERROR_FORMAT, "%s", message);
}
