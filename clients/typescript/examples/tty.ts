import { Kennel } from "@kennel/client";

await using kennel = await Kennel.connect();
const tty = await kennel.pty("sh");
tty.write("echo $((6*7))\r");
await tty.expect("42");
tty.resize(120, 40);
tty.write("stty size\r");
await tty.expect("40 120");
tty.write("exit 5\r");
console.log("code", (await tty.run.wait())?.code);
