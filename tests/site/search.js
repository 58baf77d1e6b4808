// Guides before other pages: the score of a result counts by the folder of its page, and more if the page's name has a
// word of the query.
(() => {
    const WEIGHTS = [
        [/^docs\/guide\/(how-to|tutorial)\//, 3],
        [/^docs\/(guide|errors)\//, 2],
        [/^generated\//, 0.3],
    ];
    const weight = url => (WEIGHTS.find(([pages]) => pages.test(url)) || [null, 1])[1];
    const NAMED = 4;
    const isNamed = (url, words) => words.toLowerCase().split(/\s+/)
        .some(word => word.length > 3 && url.split("#")[0].toLowerCase().includes(word));
    const load = elasticlunr.Index.load;
    elasticlunr.Index.load = serialised => {
        const index = load.call(elasticlunr.Index, serialised);
        const search = index.search.bind(index);
        index.search = (words, options) => {
            const weighted = result => {
                const url = window.search.doc_urls[result.ref];
                return { ...result, score: result.score * weight(url) * (isNamed(url, words) ? NAMED : 1) };
            };
            return search(words, options).map(weighted).sort((a, b) => b.score - a.score);
        };
        return index;
    };
})();
