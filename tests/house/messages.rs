//! Texts of the product: errors, logs, help, descriptions of metrics. They use the words of the pages.

use super::{
    lexer::{Token, tokens},
    pages::{WORDS, words_of},
    source::{Source, shipped},
};

/// Returns `path: word (say: other) in "text"` of each text with a vague word.
fn vague(source: &Source) -> Vec<String> {
    let code = source.text.split("\n#[cfg(test)]").next().unwrap_or("");
    let mut found = Vec::new();
    for token in tokens(code) {
        let Token::Text(text) = token else { continue };
        // Flags of other tools keep their names.
        if text.starts_with("\"--") && !text.contains(' ') {
            continue;
        }
        // A string continued over lines counts as one line.
        let parts = text.split("\\\n").map(str::trim_start);
        let words = parts.collect::<String>().to_lowercase();
        let words = format!(" {} ", words_of(&words));
        let here = WORDS
            .iter()
            .filter(|(word, _)| words.contains(&format!(" {word} ")));
        found.extend(
            here.map(|(word, say)| format!("{}: {word} (say: {say}) in {text}", source.path)),
        );
    }
    found
}

#[test]
fn messages_have_no_vague_words() {
    let found: Vec<String> = shipped().iter().flat_map(vague).collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn planted_vague_message_is_detected() {
    let planted = |text: &str| Source {
        path: "crates/kennel/src/planted.rs".to_owned(),
        text: text.to_owned(),
    };
    for text in [
        "fn f() { warn!(\"nobody reads it\"); }",
        "const A: &str = \"the run goes \\\n    on\";",
        "#[doc = r#\"Whoever\"#] struct A;",
    ] {
        assert_eq!(vague(&planted(text)).len(), 1, "{text}");
    }
    for text in [
        "fn f() { nobody(\"no process reads it\"); } // goes on",
        "const A: &str = \"--kill-whom\";",
        "#[cfg(test)]\nmod tests { const A: &str = \"nobody\"; }",
    ] {
        assert_eq!(
            vague(&planted(&format!("//!\n{text}"))),
            Vec::<String>::new()
        );
    }
}
