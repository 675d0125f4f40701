#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tools/predict_gpu.py: cases computed by hand, constants against the results they come from, and the page that has its
table."""
import csv
import os
import sys
import unittest

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
sys.path.insert(0, os.path.join(ROOT, "tools"))
import predict_gpu as gpu  # noqa: E402


def results(name):
    with open(os.path.join(ROOT, "bench", "results", name), newline="") as f:
        return list(csv.DictReader(f))


KERNELS = results("2026-11-27-h200-kernels.csv")


def us(figure):
    return min(float(r["us"]) for r in KERNELS if r["figure"] == figure)


class Counts(unittest.TestCase):
    def test_bytes_are_those_of_the_benches(self):
        files = {"1b": (gpu.M1B, "BF16"), "8b": (gpu.M8B, "BF16"), "8bq8": (gpu.M8B, "Q8_0"), "8bq4": (gpu.M8B, "Q4_K"),
                 "06b": (gpu.M06B, "BF16")}
        rows = [r for r in results("2026-11-26-h200-steps.csv")
                if (r["kv"], r["what"], r["tokens"]) == ("f16", "decode", "128")]
        self.assertEqual({r["model"] for r in rows}, set(files))
        for r in rows:
            m, weights = files[r["model"]]
            self.assertEqual(gpu.weight_bytes(m, weights), int(r["weight_bytes"]), r["model"])
            self.assertEqual(gpu.step_bytes(m, weights), int(r["weight_bytes"]) + int(r["kv_bytes"]), r["model"])

    def test_instructions_are_those_of_the_page(self):
        text = gpu.PAGE.read_text()
        table = text[text.index("| | bf16 | f16 | fp8 | int8 | k8v4 | kv4 |"):].splitlines()
        types = [c.strip() for c in table[0].strip("|").split("|")]
        now = next(line for line in table if line.startswith("| now |")).strip("|").split("|")
        for cache, (_, count) in gpu.CACHE.items():
            self.assertEqual(float(now[types.index(cache)]), count, cache)

    def test_instructions_of_products_are_those_of_the_machine_code(self):
        with open(os.path.join(ROOT, "kernels", "cuda", "sass.csv"), newline="") as f:
            loop, = (int(r["path"]) for r in csv.DictReader(f) if "90" in r["arch"].split() and r["kernel"] == "row_q<frag_q4_k, 2>")
        self.assertEqual(gpu.instructions(gpu.M1B, "Q4_K"), 695377920 * loop / 2304)
        self.assertEqual(gpu.instructions(gpu.M1B, "BF16"), 0)


class Constants(unittest.TestCase):
    def test_rates(self):
        self.assertAlmostEqual(gpu.READ, 1073741824 / us("read") / 1e6, places=3)
        self.assertAlmostEqual(gpu.READ * gpu.PRODUCT, 1050673152 / us("gemv BF16 8B head (128256 x 4096), 1 rows") / 1e6, places=3)
        self.assertAlmostEqual(gpu.ATTENTION_REACH * 781.6, 274.39, delta=0.1)
        self.assertEqual([r["value"] for r in results("2026-11-26-h200-peers.csv") if "product" in r["what"]], ["781.6"])
        copies = [float(r["copy_gb_s"]) for r in results("2026-11-26-h200-steps.csv") if r["copy_gb_s"]]
        self.assertAlmostEqual(gpu.READ * gpu.COPY, sorted(copies)[len(copies) // 2] / 1e3, places=2)

    def test_instructions_a_clock(self):
        more = us("attention g4, depth 65536, batch 1") - us("attention g4, depth 8192, batch 1")
        self.assertAlmostEqual(gpu.ISSUE_REACH, (65536 - 8192) * 8 * 30.7 / (132 * 4 * 1750) / more, places=2)

    def test_kernels_alone(self):
        rows = [r for r in KERNELS if r["figure"].startswith("gemv BF16") and r["figure"].endswith(", 1 rows") and " head " not in r["figure"]]
        self.assertEqual(len(rows), 6)
        beside = [float(r["us"]) - int(r["bytes"]) / (gpu.READ * gpu.PRODUCT * 1e6) for r in rows]
        self.assertAlmostEqual(gpu.ALONE, sum(beside) / 6, places=2)
        self.assertAlmostEqual(gpu.TOKEN, us("sample greedy, 1 rows of 128256"), places=2)

    def test_a_prompt(self):
        four = gpu.step_us("llama-3.1-8b 4 layers", "BF16", "prefill", 512)
        layer = (gpu.step_us("llama-3.1-8b", "BF16", "prefill", 512) - four) / 28
        head = 1050673152 / (gpu.READ * gpu.PRODUCT * 1e6) + 3 * gpu.KERNEL
        self.assertAlmostEqual(gpu.PROMPT, four - 4 * layer - head, delta=5)


class Model(unittest.TestCase):
    def test_a_step_by_hand(self):
        # 16 layers of 60,817,408 weights and a head of 262,668,288, 9 bytes for 16; 33 norms of 2,048 in f32; 221 slots.
        n_bytes = (16 * 60817408 + 262668288) * 9 // 16 + 33 * 2048 * 4 + 221 * 16 * 8 * 64 * 2 * 2
        self.assertEqual(n_bytes, 702619648)
        step = gpu.decode(gpu.H200, gpu.M1B, "Q4_K")
        self.assertAlmostEqual(step["bytes"], 161.51, places=2)    # at 4.3503 TB/s
        self.assertAlmostEqual(step["kernels"], 568.39, places=2)  # 99 of (62.4 - 121.6 / 4.3503) / 6 = 5.7413
        self.assertEqual((step["token"], len(step)), (4.54, 3))

    def test_instructions_limit_four_bits(self):
        self.assertAlmostEqual(gpu.attention(gpu.H200, "kv4", 65536)["instructions"], 28.10, places=2)
        self.assertAlmostEqual(gpu.attention(gpu.H200, "fp8", 65536)["bytes"], 31.33, places=2)

    def test_a_product_takes_whole_waves(self):
        wave = 2 * 128 * 256 / (781.6e6 / 132)  # us a column of the weight: 0.011068
        self.assertAlmostEqual(gpu.product(gpu.H200, 512, 14336, 4096), 2 * 4096 * wave)   # 4 x 56 tiles on 132
        self.assertAlmostEqual(gpu.product(gpu.H200, 512, 4096, 14336), 14336 * wave)      # 4 x 16
        self.assertAlmostEqual(gpu.product(gpu.H200, 16, 4096, 14336), 14336 * wave)       # 1 x 16
        self.assertAlmostEqual(gpu.product(gpu.H200, 512, 1024, 4096), 4096 * wave / 4)    # 4 x 4, so quarter tiles: 4 x 16
        self.assertAlmostEqual(gpu.product(gpu.DEVICES["Orin"], 1, 4096, 4096), 2 * 4096 * 4096 / (204.8e3 * 0.85 * 4.3503 / 4.5126))

    def test_products_as_one(self):
        wave = 2 * 128 * 256 * 4096 / (781.6e6 / 132)  # us of 4,096 columns: 45.33
        apart, one = (gpu.step(gpu.H200, gpu.M8B, 2048, as_one) for as_one in (False, True))
        self.assertAlmostEqual(apart["tiles"], 32 * (2 + 1 + 1 + 2 + 7 + 7 + 2 * 3.5) * wave)  # 256, 64, 64, 256, 896, 896, 256 tiles
        self.assertAlmostEqual(one["tiles"], 32 * (3 + 2 + 14 + 2 * 3.5) * wave)               # 384, 256, 1,792, 256
        self.assertAlmostEqual((apart["kernels"] - one["kernels"]) / gpu.KERNEL, 32 * 4)
        # A row and layer: k and v to RoPE and the cache, q and back; three preparations of 4,096; 14,336 of gate and up.
        self.assertEqual(gpu.between(gpu.M8B, False), 6144 * 4 + 4096 * 4 + 2048 * 2 + 3 * 4096 * 8 + 14336 * (12 + 8))
        self.assertEqual(gpu.between(gpu.M8B, True), 6144 * 4 + 4096 * 4 + 2048 * 2 + 3 * 4096 * 6 + 14336 * 10)
        self.assertEqual(gpu.step(gpu.H200, gpu.M8B, 128, True)["between"], 0)  # in L2

    def test_a_slower_clock_and_a_late_beginning(self):
        self.assertAlmostEqual(gpu.DEVICES["Orin"].kernel, 0.75 + 4.9913 * 1.75 / 1.3 + 1.2, places=3)
        self.assertEqual(gpu.DEVICES["H100"].kernel, gpu.KERNEL)


class Table(unittest.TestCase):
    def test_the_page_has_what_the_script_prints(self):
        self.assertEqual(gpu.in_page(gpu.PAGE.read_text()), gpu.table(), "tools/predict_gpu.py --fix")

    def test_what_a_kernel_may_cost(self):
        # 8B in bf16: 15,039,348,736 bytes at 4.16 TB/s and 90 % are 4,016.9 us; bytes and the token 3,461.6; 195 kernels.
        line = next(line for line in gpu.table().splitlines() if line.startswith("| 8B BF16 |"))
        self.assertEqual(line.split(" | ")[6], f"{(4016.9 - 3461.6) / 195:.1f}")


if __name__ == "__main__":
    unittest.main()
