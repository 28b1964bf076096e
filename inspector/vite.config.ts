import { createHash } from "node:crypto";
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { defineConfig, type Plugin } from "vite";

const OUT = "../src/perdure/inspector/static";

/** Record the hash of the sources beside what was built, so that a test notices a page that was not rebuilt. */
function recordSources(): Plugin {
  return {
    name: "record-sources",
    closeBundle() {
      const files = ["index.html", "package-lock.json", "vite.config.ts", ...readdirSync("src").sort().map((name) => `src/${name}`)];
      const hash = createHash("sha256");
      for (const file of files) hash.update(`${file}\n`).update(readFileSync(file));
      writeFileSync(`${OUT}/sources.sha256`, `${hash.digest("hex")}\n`);
    },
  };
}

export default defineConfig({
  base: "./", // relative addresses work behind any prefix
  plugins: [recordSources()],
  build: {
    outDir: OUT,
    emptyOutDir: true,
    modulePreload: { polyfill: false },
    assetsInlineLimit: 0,
    target: "es2022",
  },
});
