import { Kennel } from "@kennel/client";

await using kennel = await Kennel.connect();
await using run = await kennel.spawn("sleep", ["60"], { labels: { app: "nb-ts" } });
await run.annotate({ port: "8888" });
for await (const found of kennel.find("app=nb-ts")) console.log("port", found.annotations.port);
