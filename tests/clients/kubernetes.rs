//! The manifests, rendered by kustomize and decoded by the types of three versions of Kubernetes.

use crate::pages::shell;
use kennel_tests::{
    must,
    programs::repository,
    shell::{run_to_end, text},
};
use std::{fs, time::Duration};

const BASES: [&str; 3] = ["sidecar", "init", "daemonset"];
/// Of `k8s.io/api`: Kubernetes 1.33, 1.35 and 1.37.
const VERSIONS: [&str; 3] = ["v0.33.0", "v0.35.0", "v0.37.0"];
/// Three cold builds on a busy machine.
const BUILD_PATIENCE: Duration = Duration::from_mins(6);

#[tokio::test(flavor = "multi_thread")]
async fn manifests_fit_three_versions_of_kubernetes() {
    let scratch = must("a directory", tempfile::tempdir());
    let here = repository().join("tests/clients/kubernetes/main.go");
    must("copy", fs::copy(here, scratch.path().join("main.go")));
    let bases = BASES.map(|base| {
        let base = repository().join("deploy/kubernetes").join(base);
        format!("'{}'", base.display())
    });
    let bases = bases.join(" ");
    let kustomize = "sigs.k8s.io/kustomize/api@v0.20.1 sigs.k8s.io/kustomize/kyaml@v0.20.1";
    for version in VERSIONS {
        let script = format!(
            "rm -f go.mod go.sum; go mod init manifests; \
             go get k8s.io/api@{version} k8s.io/apimachinery@{version} {kustomize}; \
             go mod tidy; go run . {bases}"
        );
        let done = run_to_end(shell(scratch.path(), &script), BUILD_PATIENCE).await;
        let errors = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{version}: {errors}");
        let kinds: Vec<String> = text(&done).lines().map(str::to_owned).collect();
        for kind in [
            "Pod agent",
            "Deployment agent",
            "DaemonSet kennel",
            "NetworkPolicy kennel",
        ] {
            assert!(
                kinds.iter().any(|found| found == kind),
                "{version}: {kinds:?}"
            );
        }
    }
    // Shows that the check can fail.
    let broken = scratch.path().join("broken");
    must("mkdir", fs::create_dir(&broken));
    let pod = repository().join("deploy/kubernetes/sidecar/pod.yaml");
    let pod = must("read", fs::read_to_string(pod));
    let pod = pod.replace("readOnlyRootFilesystem", "readOnlyRootFileSystem");
    must("write", fs::write(broken.join("pod.yaml"), pod));
    must(
        "write",
        fs::write(broken.join("kustomization.yaml"), "resources: [pod.yaml]\n"),
    );
    let done = run_to_end(shell(scratch.path(), "go run . broken"), BUILD_PATIENCE).await;
    let errors = String::from_utf8_lossy(&done.stderr);
    assert!(
        !done.status.success() && errors.contains("readOnlyRootFileSystem"),
        "{errors}"
    );
}
