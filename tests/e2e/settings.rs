//! The configuration file of `kennel serve`.

use kennel_tests::{Kennel, Options};
use std::fs;

#[tokio::test(flavor = "multi_thread")]
async fn settings_of_the_file_outlast_its_edit() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("kennel.toml");
    fs::write(&file, "log_format = \"json\"\n").expect("written");
    let options = Options {
        env: vec![("KENNEL_CONFIG".into(), file.display().to_string())],
        ..Options::default()
    };
    let mut kennel = Kennel::start(options).await;
    let ready = |kennel: &Kennel| kennel.log().matches(r#""message":"ready""#).count();
    assert_eq!(ready(&kennel), 1, "{}", kennel.log());
    // A server that starts while the file is being edited is unaffected.
    for edited in ["log_format = [broken", "log_format = \"text\""] {
        fs::write(&file, edited).expect("written");
        kennel.replace_server().await;
    }
    assert_eq!(ready(&kennel), 3, "{}", kennel.log());
}
