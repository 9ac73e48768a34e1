"use strict";
// Shows only the checks, components and differences that contain every word. Without this script the page is complete.
{
  const box = document.getElementById("search"), field = box.querySelector("input"), status = box.querySelector("output");
  const items = [...document.querySelectorAll("details.check, .find")];
  const texts = items.map((item) => item.textContent.toLowerCase());
  const folds = [...document.querySelectorAll("details")], wasOpen = folds.map((fold) => fold.open);
  const containers = [...document.querySelectorAll(".role, .passes, .origin")];
  const search = () => {
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    folds.forEach((fold, index) => { fold.open = wasOpen[index]; });
    items.forEach((item, index) => { item.hidden = !words.every((word) => texts[index].includes(word)); });
    containers.forEach((one) => { one.hidden = words.length > 0 && !one.querySelector("details.check:not([hidden]), .find:not([hidden])"); });
    const shown = items.filter((item) => !item.hidden);
    if (words.length) {
      for (const item of shown) {
        for (let fold = item.parentElement.closest("details"); fold; fold = fold.parentElement.closest("details")) fold.open = true;
      }
    }
    status.textContent = words.length ? `${shown.length} of ${items.length}` : "";
  };
  let timer = 0;
  field.addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(search, 120); });
  box.hidden = false;
}
