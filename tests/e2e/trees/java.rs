//! Ant: a JVM that starts javac, and a JVM that starts the program's children.

use super::{Work, abort_leaves_nothing, end_leaves_nothing};
use kennel_proto::pb::RunSpec;
use kennel_tests::{Options, argv};
use std::{fs, path::Path};

const BUILD: &str = r#"<project default="run">
  <target name="compile">
    <mkdir dir="classes"/>
    <javac srcdir="src" destdir="classes" includeantruntime="false" fork="true"/>
  </target>
  <target name="run" depends="compile">
    <java classname="Main" classpath="classes" fork="true" failonerror="true"><arg value="WORK"/></java>
  </target>
</project>
"#;

const MAIN: &str = r#"import java.lang.ProcessBuilder.Redirect;

public class Main {
    static Process start(String... words) throws Exception {
        return new ProcessBuilder(words).redirectInput(Redirect.from(new java.io.File("/dev/null")))
            .redirectOutput(Redirect.DISCARD).redirectError(Redirect.DISCARD).start();
    }

    public static void main(String[] args) throws Exception {
        start("setsid", "sleep", "600");
        if (args[0].equals("stays")) {
            Process shell = start("sh", "-c", "sleep 600; true");
            System.out.println("compiled and running");
            shell.waitFor();
        }
    }
}
"#;

// promise: T-80b
#[tokio::test(flavor = "multi_thread")]
async fn aborted_ant_leaves_no_process() {
    // Expected: Ant's JVM, the program's JVM, a shell, two sleeps.
    abort_leaves_nothing(Options::default(), ant, "compiled and running", 5).await;
}

// promise: T-80b
#[tokio::test(flavor = "multi_thread")]
async fn finished_ant_leaves_no_process() {
    end_leaves_nothing(Options::default().without_cgroup(), ant).await;
}

fn ant(scratch: &Path, work: Work) -> RunSpec {
    let dir = scratch.join("java");
    fs::create_dir_all(dir.join("src")).expect("made");
    let argument = match work {
        Work::Stays => "stays",
        Work::Ends => "ends",
    };
    fs::write(dir.join("build.xml"), BUILD.replace("WORK", argument)).expect("written");
    fs::write(dir.join("src/Main.java"), MAIN).expect("written");
    let mut spec = argv(&["ant"]);
    spec.cwd = Some(dir.display().to_string());
    spec
}
