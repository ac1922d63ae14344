/* Writes as fast as possible: "writer lines N" writes N lines of 100 bytes, "writer flood N" N bytes without a newline. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char line[] = "rank 0 line 000000000 xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\n";
enum { SIZE = sizeof line - 1, LAST_DIGIT = 20 };

int main(int argc, char **argv)
{
    static char buffer[65536], flood[10000];
    const char *rank = getenv("RANK") ? getenv("RANK") : getenv("PMI_RANK");
    long count = argc == 3 ? atol(argv[2]) : 0;

    setvbuf(stdout, buffer, _IOFBF, sizeof buffer);
    if (argc == 3 && !strcmp(argv[1], "flood")) {
        memset(flood, 'x', sizeof flood);
        for (; count > 0; count -= sizeof flood)
            if (!fwrite(flood, sizeof flood, 1, stdout))
                return 1;
    } else {
        line[5] = rank ? rank[0] : '0';
        while (count-- > 0) {
            if (!fwrite(line, SIZE, 1, stdout))
                return 1;
            for (int i = LAST_DIGIT; ++line[i] > '9'; i--)
                line[i] = '0';
        }
    }
    return fflush(stdout) != 0;
}
