// SPDX-License-Identifier: MIT
/* The tiny program that the fork and exec storm starts. */
int main(void) {
    return 0;
}
