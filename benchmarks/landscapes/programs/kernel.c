/* A tiled matrix product, repeated: prints its GFLOP/s. TILE and the flags come from the compiler's command line. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define N 384

static float a[N][N], b[N][N], c[N][N];

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static void multiply(void) {
#pragma omp parallel for schedule(static)
  for (int i0 = 0; i0 < N; i0 += TILE)
    for (int j0 = 0; j0 < N; j0 += TILE)
      for (int k0 = 0; k0 < N; k0 += TILE)
        for (int i = i0; i < i0 + TILE; i++)
          for (int j = j0; j < j0 + TILE; j++) {
            float sum = c[i][j];
            for (int k = k0; k < k0 + TILE; k++) sum += a[i][k] * b[j][k];
            c[i][j] = sum;
          }
}

int main(int argc, char **argv) {
  double seconds = argc > 1 ? atof(argv[1]) : 0.1, passed;
  for (int i = 0; i < N; i++)
    for (int j = 0; j < N; j++) {
      a[i][j] = (float)((i * 7 + j) % 13) / 13;
      b[i][j] = (float)((i + j * 5) % 11) / 11;
    }
  multiply();
  int times = 0;
  double begin = now();
  do {
    multiply();
    times++;
  } while ((passed = now() - begin) < seconds);
  fprintf(stderr, "checksum %g\n", c[1][2] + c[N - 1][N - 2]);
  printf("GFLOP/s: %.6g\n", 2.0 * N * N * N * times / passed / 1e9);
  return 0;
}
